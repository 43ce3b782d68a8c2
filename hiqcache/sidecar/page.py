"""The status page: one HTML file, with a policy under which nothing else can be loaded or run."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

_INLINE = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """The page and the headers it is sent with."""

    html: str
    headers: dict[str, str]


def load_page() -> Page:
    """Read the page; its Content-Security-Policy names its own style and script by hash."""
    html = (files("hiqcache.sidecar") / "page.html").read_text("utf-8")
    hashes = {tag: _hash(content) for tag, content in _INLINE.findall(html)}
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src {hashes['style']}",
            f"script-src {hashes['script']}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    headers = {
        "content-security-policy": policy,
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
    return Page(html, headers)


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
