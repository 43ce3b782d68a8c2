"""An experiment's rows, for its runs, report and simulator: which server, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

from hiqcache.lab.experiment.workload import Workload
from hiqcache.lab.row import Row, read

ROWS, RAW, PROVENANCE = "rows", "raw", "provenance"
"""Files of a folder: figures of each run, what SGLang's client returned for it, and a line for
each invocation. A run that may not be used stays, with `valid` false and the reason."""

BF16 = ("off", "bf16")
"""The codecs of SGLang's own pool, and of HiQCache's without encoding."""

OUTPUT = "output_tokens_per_s"
Key = tuple[str, str, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Figures(Row):
    """One run of the workload: tokens, bytes, milliseconds unless a name says otherwise.

    `l2_tokens` and `l2_used_tokens` are the engine's, None without L2. What was never moved has
    no bytes per token and no rate.
    """

    duration_s: float
    requests: int
    prompt_tokens: int
    l1_hit_tokens: int
    l2_hit_tokens: int
    hit_rate: float
    backup_tokens: int
    backup_bytes: int
    restore_tokens: int
    restore_bytes: int
    l1_evicted_tokens: int
    dropped_tokens: int
    ttft_mean_ms: float
    ttft_median_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    latency_mean_ms: float
    output_tokens_per_s: float
    chunk: int
    backup_bytes_per_token: float | None = None
    restore_bytes_per_token: float | None = None
    backup_tokens_per_ms: float | None = None
    restore_tokens_per_ms: float | None = None
    ttft_server_mean_ms: float | None = None
    l2_tokens: int | None = None
    l2_used_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Single(Row):
    """Single prompts on a quiet server: milliseconds to the first token, by tier."""

    prefix_tokens: int
    cold_ms: float
    l1_hit_ms: float
    l2_hit_ms: float
    restored_tokens: Sequence[int] = ()
    restore_tokens_per_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement(Row):
    """One run.

    Parameters
    ----------
    arm, codec, policy, layout, l1_tokens, page_size, capacity_tokens, capacity_bytes
        The server; capacities are what the arithmetic says of its L2.
    valid, reason
        Whether the figures may be used; why not.
    figures
        None where the run failed.
    run, invocation
        Its place in the folder, and that of its line in `provenance.jsonl`.
    """

    experiment: str
    arm: str
    codec: str | None = None
    policy: str | None = None
    layout: str | None = None
    repeat: int
    seed: int
    workload: Workload
    geometry: str
    load_format: str | None = None
    l1_tokens: int
    page_size: int
    capacity_tokens: int
    capacity_bytes: int
    gpu: str | None = None
    arguments: Sequence[str] = ()
    invocation: int = 0
    started: str = ""
    valid: bool
    reason: str | None = None
    figures: Figures | Single | None = None
    run: int = 0

    @property
    def key(self) -> Key:
        """What makes two rows the same measurement."""
        shape = self.workload
        return (
            *(self.experiment, self.arm, self.page_size),
            *(shape.groups, shape.prefix, self.repeat),
        )

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> Self:
        kinds: tuple[type[Figures | Single], ...] = (Figures, Single)
        kind = next((kind for kind, mark in zip(kinds, MARKS, strict=True) if mark in entry), None)
        return super().parse(
            {
                **entry,
                "workload": Workload(**entry["workload"]),
                "arguments": entry.get("arguments") or (),
                "figures": kind and kind.parse(entry),
            }
        )

    def get(self, name: str) -> float | None:
        """A figure or size by its name; None where this run has none."""
        value = getattr(self.figures, name, None)
        return getattr(self, name, None) if value is None else value


MARKS = ("output_tokens_per_s", "cold_ms")
"""A field that only `Figures` has, and one that only `Single` has."""


def load_rows(folder: Path, *, valid_only: bool = True) -> list[Measurement]:
    """The rows of a results folder, in the order in which they were run."""
    rows = map(Measurement.parse, read(folder / f"{ROWS}.jsonl"))
    return [row for row in rows if row.valid or not valid_only]


def load_provenance(folder: Path) -> list[dict[str, Any]]:
    """One entry for each invocation."""
    return read(folder / f"{PROVENANCE}.jsonl")


def by_arm(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Rows of each arm, in the order in which the arms first ran."""
    groups: dict[str, list[Measurement]] = {}
    for row in rows:
        groups.setdefault(row.arm, []).append(row)
    return groups


def best_arm(rows: Sequence[Measurement], figure: str) -> Measurement | None:
    """Some row of the arm that did best in B by the median of a figure; None without any.

    Parameters
    ----------
    figure
        `output_tokens_per_s`, of which more is better, or a time, of which less is.
    """
    medians = {
        arm: median([value for row in of if (value := row.get(figure)) is not None])
        for arm, of in by_arm([row for row in rows if row.experiment == "b"]).items()
    }
    if not medians:
        return None
    best = max if figure == OUTPUT else min
    arm = best(medians, key=lambda name: medians[name])
    return next(row for row in rows if row.arm == arm)
