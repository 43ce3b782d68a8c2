"""The sentences that say what is wrong: each one when it is due, and none when all is well."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from hiqcache.sidecar.engine import Reading
from hiqcache.sidecar.failure import Failure, Reason
from hiqcache.sidecar.figures import NO_POOL, Figures
from hiqcache.sidecar.problems import Code, find_problems
from tests.unit.sidecar_cases import changed, figures_of, recorded_figures

NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)


def codes(figures: Figures) -> list[Code]:
    problems = find_problems(Reading("int8", figures, None, 0.1, None, NOON))
    for problem in problems:
        assert problem.severity in ("error", "warning")
        assert problem.text.endswith((".", "?"))
    return [problem.code for problem in problems]


@pytest.mark.parametrize("name", ["fresh", "before_first_hit", "traffic", "after_restart"])
def test_a_good_engine_has_none(name: str) -> None:
    assert codes(recorded_figures(name)) == []


def test_a_plain_engine_is_named() -> None:
    assert codes(recorded_figures("plain")) == [Code.NO_L2]


def inert(figures: Figures) -> Figures:
    return changed(figures, restore_tokens=0.0, restore_bytes=0.0, evicted_tokens=20_000.0)


WRONG: dict[Code, Callable[[Figures], Figures]] = {
    Code.NO_HIQCACHE: lambda f: changed(f, pool=NO_POOL, bytes_per_token=None),
    Code.L2_INERT: inert,
    Code.BYTES_PER_TOKEN_DIFFER: lambda f: changed(f, restore_bytes=f.restore_bytes + 1),
    Code.TOKENS_DROPPED: lambda f: changed(f, dropped_tokens={"host_pressure": 7.0}),
    Code.FIGURES_UNREADABLE: lambda f: Figures(f.values, ("l2_tokens",)),
}


@pytest.mark.parametrize("code", WRONG)
def test_each_problem_is_found_alone(code: Code) -> None:
    assert codes(WRONG[code](recorded_figures("traffic"))) == [code]


@pytest.mark.parametrize(
    "quiet",
    [
        lambda f: changed(f, evicted_tokens=18_000.0),
        lambda f: changed(f, l1_tokens_max=20_000.0),
        lambda f: changed(f, dropped_tokens={"host_pressure": 1000.0}),
        lambda f: changed(f, backup_tokens=0.0, backup_bytes=0.0),
        lambda f: changed(f, restore_tokens=1.0),
        lambda f: changed(f, evicted_tokens=None),
    ],
    ids=[
        "no repetition",
        "L1 not full yet",
        "dropped",
        "nothing backed up",
        "one restored",
        "unknown",
    ],
)
def test_an_l2_that_was_not_needed_is_not_inert(quiet: Callable[[Figures], Figures]) -> None:
    assert Code.L2_INERT not in codes(quiet(inert(recorded_figures("traffic"))))


@pytest.mark.parametrize("failure", Failure)
def test_a_down_engine_says_since_when_and_where_to_look(failure: Failure) -> None:
    (problem,) = find_problems(Reading("int8", None, failure, 3.0, NOON, None))
    assert problem.code is Code.ENGINE_DOWN
    assert "Engine down: no answer since the sidecar first asked, 2026-01-02 12:00" in problem.text
    (problem,) = find_problems(Reading("int8", None, failure, 3.0, NOON, NOON))
    assert problem.text.startswith("Engine down since 2026-01-02 12:00:00 UTC (last answer 12:00")
    assert problem.text.endswith(failure.sentence)


def test_each_way_to_fail_has_a_sentence_of_its_own() -> None:
    sentences = [failure.sentence for failure in Failure]
    assert len(set(sentences)) == len(sentences) == len(Failure.__members__)
    assert {failure.reason for failure in Failure} == set(Reason)


def test_a_pool_that_cannot_be_read_is_not_called_missing() -> None:
    assert codes(figures_of("hiqcache_engine_pool_info{codec= 1\n")) == [Code.FIGURES_UNREADABLE]
