"""Metric families on SGLang's own `/metrics`, each registered once a process by its first pool.

SGLang runs prometheus_client in its multiprocess mode: whatever a process registers appears on
the one `/metrics` of the server. That mode is chosen when prometheus_client is first imported,
by a variable that SGLang sets, so it is imported here only when a pool is built, in the
scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang.srt.runtime_context import get_parallel

_made: dict[str, Any] = {}


def rank_labels() -> dict[str, str]:
    """The labels by which one process's figures are told from another's, as SGLang's are.

    Ranks of one replica count the same tokens; another replica's are other tokens.
    """
    parallel = get_parallel()
    return {
        "tp_rank": str(parallel.tp_rank),
        "pp_rank": str(parallel.pp_rank),
        "dp_rank": str(parallel.dp_rank or 0),
    }


def gauge(name: str, about: str, labels: Mapping[str, str]) -> Any:
    """The gauge of that name for these labels; of several processes the newest value counts."""
    if name not in _made:
        from prometheus_client import Gauge

        _made[name] = Gauge(name, about, labels.keys(), multiprocess_mode="mostrecent")
    return _made[name].labels(**labels)


def counter(name: str, about: str, labels: Mapping[str, str]) -> Any:
    """The counter of that name for these labels."""
    if name not in _made:
        from prometheus_client import Counter

        _made[name] = Counter(name, about, labels.keys())
    return _made[name].labels(**labels)


def forget() -> None:
    """Take every family out of the registry, for tests that build pools of other labels."""
    from prometheus_client import REGISTRY

    for family in _made.values():
        REGISTRY.unregister(family)
    _made.clear()
