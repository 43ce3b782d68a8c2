"""How far a server has come, read from its own log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum


class Stage(IntEnum):
    """What a server does while it starts, in the order in which SGLang 0.5.23 does it."""

    STARTING = 0
    LOADING = 1
    CAPTURING = 2
    PINNING = 3
    WARMING = 4
    READY = 5

    @property
    def words(self) -> str:
        return WORDS[self]


WORDS = {
    Stage.STARTING: "starting",
    Stage.LOADING: "loading weights",
    Stage.CAPTURING: "capturing graphs",
    Stage.PINNING: "pinning L2",
    Stage.WARMING: "warming up",
    Stage.READY: "ready",
}

# SGLang's and HiQCache's own lines. SGLang names the graph ("Capture target decode CUDA graph").
MARKS = (
    (re.compile(r"Load weight begin"), Stage.LOADING),
    (re.compile(r"Capture .*graph begin"), Stage.CAPTURING),
    (re.compile(r"Allocating .*hierarchical .*host pool"), Stage.PINNING),
    (re.compile(r"HiQCache: codec="), Stage.WARMING),
    (re.compile(r"Uvicorn running on"), Stage.WARMING),
    (re.compile(r"The server is fired up"), Stage.READY),
)
REFUSALS = (re.compile(r"HiQCache stops the "), re.compile(r"^failed\s"))
TAIL = 12


def stage_of(line: str) -> Stage | None:
    """The stage that a log line begins, if it begins one."""
    return next((stage for mark, stage in MARKS if mark.search(line)), None)


def last_stage(lines: Iterable[str]) -> Stage:
    """The stage after these lines: the latest in SGLang's order, since ranks log in any order."""
    return max((stage for line in lines if (stage := stage_of(line))), default=Stage.STARTING)


def last_words(lines: Iterable[str]) -> list[str]:
    """Why a server ended: its refusals if it has any, else the end of its log."""
    said = [line.rstrip() for line in lines if line.strip()]
    refusals = [line for line in said if any(mark.search(line) for mark in REFUSALS)]
    return list(dict.fromkeys(refusals)) or said[-TAIL:]
