"""The engine's numbers that the sidecar knows, folded as they are read out of its `/metrics`.

A line of an unknown metric is not even parsed. Of a known one only the labels in `LABELS` and the
ranks are looked at, and a value of theirs that is not known becomes `other` before it is kept: so
nothing else of the engine's (the model's path is in almost every line) can reach an answer of the
sidecar, and no label of a customer's can make it grow. Used by `source`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from hiqcache.codec.catalog import codec_names
from hiqcache.codec.page import Fault
from hiqcache.config import TRANSFERS

OTHER = "other"
"""Stands for a label value that the sidecar does not know, which is never passed on."""

TIERS = ("device", "host", "storage")
UNSPLIT = "total"
"""SGLang's name for hits that it cannot split, which have no tier but L1."""
DROP_REASONS = ("host_pressure", "write_through_unbacked_eviction")
FAULTS = tuple(fault.value for fault in Fault)
POOLS = ("kv", "swa", "draft", "draft_swa", "mamba", "indexer", "auxiliary_swa")
LAYOUTS = ("layer_first", "page_first")
ROWS = ("BF16", "FP16", "E4M3", "E5M2")


def _one_of(*known: str) -> Callable[[str], str]:
    return lambda value: value if value in known else OTHER


def _bound(text: str) -> str:
    """A bucket's bound in one spelling; NaN where it is none."""
    try:
        return repr(float(text))
    except ValueError:
        return repr(math.nan)


LABELS: Mapping[str, Callable[[str], str]] = {
    "cache_source": _one_of(*TIERS, UNSPLIT),
    "reason": _one_of(*DROP_REASONS, *FAULTS),
    "pool": _one_of(*POOLS),
    # Requests of each priority stand beside the total, whose priority is empty.
    "priority": _one_of(""),
    "codec": lambda value: value if value in codec_names() else OTHER,
    "transfer": _one_of(*TRANSFERS),
    "layout": _one_of(*LAYOUTS),
    "rows": _one_of(*ROWS),
    "page_size": lambda value: value if re.fullmatch("[0-9]{1,6}", value) else OTHER,
    "le": _bound,
}
"""The labels that decide something, each with the function that folds its values."""

RANKS = ("pp_rank", "tp_rank", "moe_ep_rank")
REPLICA = "dp_rank"

_VALUE = re.compile(r" *[+-]?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|Inf|NaN)(?: +-?[0-9]+)? *")
_SGLANG_LINE = re.compile(r"^sglang:[a-z0-9_]+[{ ]", re.MULTILINE)


class Unreadable(ValueError):
    """A figure's lines are there and do not make a figure."""


@dataclass(slots=True)
class Cell:
    """The lines of one metric that have the same folded labels.

    Parameters
    ----------
    labels
        Those of `LABELS` that the lines have.
    rank
        The lowest rank among the lines.
    one_rank, all_ranks
        The sum of its values, and of everybody's; NaN if one of them is no number that a counter
        or a size can have.
    """

    labels: Mapping[str, str]
    rank: tuple[int, ...]
    one_rank: float = 0.0
    all_ranks: float = 0.0


class Samples:
    """What one text says, by metric.

    Ranks of a replica count the same tokens, each under its own `tp_rank`: adding them would
    multiply, so the lowest that reports stands for all, for bytes as well, so that bytes over
    tokens stay one rank's record arithmetic. Replicas are other traffic, and so is whatever
    differs in a label that decides nothing: they are added.
    """

    def __init__(self, text: str, known: re.Pattern[str]) -> None:
        self._cells: dict[str, dict[tuple[object, ...], Cell]] = {}
        self._broken: set[str] = set()
        for line in known.findall(text):
            try:
                self._add(line)
            # The parser has no error type of its own: a broken line is a ValueError or an overrun.
            except (ValueError, IndexError, KeyError, TypeError, StopIteration):
                self._broken.add(re.split(r"[{\s]", line, maxsplit=1)[0])

    def cells(self, name: str) -> list[Cell]:
        """The cells of one metric; none if the engine has no such line.

        Raises
        ------
        Unreadable
            A line of it is broken.
        """
        if name in self._broken:
            raise Unreadable(name)
        return list(self._cells.get(name, {}).values())

    def _add(self, line: str) -> None:
        # The library takes digits of any script, and leaves aside what follows a time stamp.
        tail = line.rpartition("}")[2] if "}" in line else line.partition(" ")[2]
        if not _VALUE.fullmatch(tail):
            raise ValueError(line)
        ((sample,),) = (family.samples for family in text_string_to_metric_families(f"{line}\n"))
        value = sample.value if 0 <= sample.value < math.inf else math.nan
        labels = {
            label: fold(sample.labels[label])
            for label, fold in LABELS.items()
            if label in sample.labels
        }
        rank = tuple(_number(sample.labels.get(label, "0")) for label in RANKS)
        replica = _number(sample.labels.get(REPLICA, "0"))
        key = (replica, *labels.items())
        cell = self._cells.setdefault(sample.name, {}).setdefault(key, Cell(labels, rank))
        if rank < cell.rank:
            cell.rank, cell.one_rank = rank, 0.0
        if rank == cell.rank:
            cell.one_rank += value
        cell.all_ranks += value


def is_sglang(text: str) -> bool:
    """Whether the text has a metric of SGLang's, known or not."""
    return _SGLANG_LINE.search(text) is not None


def lines_of(names: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the lines of these metrics, for `Samples`."""
    return re.compile(rf"^(?:{'|'.join(names)})(?![a-zA-Z0-9_:]).*$", re.MULTILINE)


def _number(text: str) -> int:
    """A rank; whatever is none makes its line a broken one."""
    if not re.fullmatch("[0-9]{1,4}", text):
        raise ValueError(text)
    return int(text)
