"""What a person sees of a running pod: a table of its containers, and what to do with it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hiqcache.pod import container as containers
from hiqcache.pod.container import Container

if TYPE_CHECKING:
    from docker import DockerClient  # type: ignore[attr-defined]

SERVER_PORT, SIDECAR_PORT = 30000, 9464
PAGES = {"prometheus": (9090, "Prometheus"), "grafana": (3000, "Grafana")}
KEY = "--api-key"


def status_table(client: DockerClient, found: Mapping[str, Container]) -> str:
    """A line a container: what it does, its memory against its limit, its address."""
    rows = [("service", "state", "memory", "limit", "address")]
    for service in sorted(found):
        one = found[service]
        figures = containers.memory(client, one)
        used = "-" if figures is None else _size(figures[0])
        limit = "-" if figures is None or figures[1] is None else _size(figures[1])
        rows.append((service, containers.stage(client, one), used, limit, _address(one)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def where_to_look(found: Mapping[str, Container]) -> str:
    """L2 of every variant as its sidecar tells it, the addresses, and a request to try."""
    lines = []
    for one in _by_variant(found, sidecars=True):
        lines.append(f"{one.variant:<5} {_l2(one)}")
        lines.append(f"      status page {one.urls.get(SIDECAR_PORT, 'not published')}/")
    for service, (port, name) in PAGES.items():
        if service in found and port in found[service].urls:
            lines.append(f"{name:<11} {found[service].urls[port]}")
    servers = [one for one in _by_variant(found, sidecars=False) if SERVER_PORT in one.urls]
    for one in servers[-1:]:
        key = any(word.startswith(KEY) for word in one.arguments)
        lines.append(f"\nAsk {one.variant}:\n{request(one.urls[SERVER_PORT], key=key)}")
    return "\n".join(lines)


def request(url: str, *, key: bool) -> str:
    """A curl that works in a shell; the key itself is left to the reader."""
    header = ' -H "authorization: Bearer $API_KEY"' if key else ""
    # With an end: a small model goes on until its context is full.
    messages = '[{"role": "user", "content": "Hello"}]'
    body = f'{{"model": "default", "max_tokens": 64, "messages": {messages}}}'
    return (
        f"curl {url}/v1/chat/completions -H 'content-type: application/json'{header} \\\n"
        f"    -d '{body}'"
    )


def l2_words(figures: Mapping[str, Any]) -> str:
    """Tokens, bytes of one and how they are stored, from one engine's figures of the summary."""
    l2, sizes, pool = figures["l2"], figures["bytes_per_token"], figures["pool"]
    if l2["tokens_max"] is None:
        return "no L2"
    size = next((sizes[k] for k in ("configured", "restore", "backup") if sizes[k]), None)
    at = f"{size:,.0f} bytes" if size else "a size that shows with the first backup"
    how = f"HiQCache {pool['codec']}" if pool else "SGLang's own HiCache, HiQCache is off"
    return f"L2 holds {l2['tokens_max']:,.0f} tokens at {at} each ({how})"


def _l2(sidecar: Container) -> str:
    url = sidecar.urls.get(SIDECAR_PORT)
    if url is None:
        return "its sidecar is not published"
    try:
        with urllib.request.urlopen(f"{url}/api/v1/summary", timeout=10) as answer:
            (engine,) = json.load(answer)["engines"]
    except (OSError, ValueError) as error:
        return f"its sidecar does not answer ({error})"
    if engine["figures"] is None:
        return " ".join(problem["text"] for problem in engine["problems"])
    return l2_words(engine["figures"])


def _by_variant(found: Mapping[str, Container], *, sidecars: bool) -> list[Container]:
    chosen = [one for one in found.values() if (one.sidecar if sidecars else one.server)]
    return sorted(chosen, key=lambda one: one.variant)


def _address(one: Container) -> str:
    return " ".join(one.urls.values()) or "-"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
