"""Bad lines in a good text, labels without end, priorities and replicas; and a fuzz of all."""

from __future__ import annotations

import math
import random
import re
import string
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiqcache.sidecar.address import Address
from hiqcache.sidecar.failure import Failure
from hiqcache.sidecar.figures import Figures, read_figures
from hiqcache.sidecar.samples import is_sglang
from hiqcache.sidecar.source import Histogram
from hiqcache.sidecar.summary import figures_json
from tests.unit.sidecar_cases import (
    TEXTS,
    answer,
    errors,
    fake_engine,
    figures_of,
    recorded_figures,
    scrape,
    sidecar,
)

pytestmark = pytest.mark.filterwarnings("error")

GOOD = recorded_figures("l3")
NAMES = sorted({name for figure in Figures.declared() for name in figure.names})
READERS = {name: {f.name for f in Figures.declared() if name in f.names} for name in NAMES}


def spoilt(name: str, value: str, text: str = TEXTS["l3"]) -> str:
    """The text with another value in every line of one metric."""
    made, count = re.subn(rf"^({name}(?:\{{.*\}})?) \S+$", rf"\1 {value}", text, flags=re.M)
    assert count, name
    return made


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "many", "1 2 3 4", "0x10", ""])
@pytest.mark.parametrize("name", [name for name in NAMES if f"\n{name}" in TEXTS["l3"]])
def test_a_figure_that_is_no_number_is_absent_and_nothing_else_is(name: str, value: str) -> None:
    found = read_figures(spoilt(name, value))
    if name.endswith("_count") or name == "hiqcache_engine_pool_info":
        # Neither is read for its value: buckets end with the count, and info is its labels.
        assert set(found.unreadable) in (set(), READERS[name])
        return
    assert set(found.unreadable) == READERS[name]
    for figure in Figures.declared():
        if figure.names:
            expected = None if figure.name in READERS[name] else GOOD.values[figure.name]
            assert found.values[figure.name] == expected, figure.name
        else:
            assert found.values[figure.name] in (None, GOOD.values[figure.name]), figure.name


@pytest.mark.parametrize("value", ["NaN", "-1"])
def test_the_engine_stays_up_and_the_figure_is_counted(value: str) -> None:
    text = spoilt("sglang:num_running_reqs", value, TEXTS["traffic"])
    count = "hiqcache_sidecar_unreadable_figures_total"
    with fake_engine(answer(text)) as engine, sidecar([Address(None, engine.url)]) as client:
        found = scrape(client)
        assert found["hiqcache_up", ()] == 1
        assert sum(errors(found).values()) == 0
        assert ("hiqcache_running_requests", ()) not in found
        assert found["hiqcache_restore_tokens_total", ()] == 9046
        counts = {dict(labels)["figure"]: n for (name, labels), n in found.items() if name == count}
        assert counts.pop("running_requests") == 1
        assert len(counts) > 25 and set(counts.values()) == {0}
        (shown,) = client.get("/api/v1/summary").json()["engines"]
        assert shown["figures"]["running_requests"] is None
        assert shown["unreadable"] == ["running_requests"]
        assert [problem["code"] for problem in shown["problems"]] == ["figures_unreadable"]
        assert "running_requests" in shown["problems"][0]["text"]
        again = scrape(client)
        assert again[count, (("figure", "running_requests"),)] == 3


BROKEN = {
    "no value": 'sglang:prompt_tokens_total{a="b"}',
    "cut off in a label": 'sglang:prompt_tokens_total{a="b',
    "a rank that is a word": 'sglang:prompt_tokens_total{tp_rank="first"} 1',
    "a rank without end": f'sglang:prompt_tokens_total{{dp_rank="{"9" * 400}"}} 1',
    "a byte that is no UTF-8": "sglang:prompt_tokens_total \N{REPLACEMENT CHARACTER}",
    "beyond all numbers": "sglang:prompt_tokens_total 1e400",
}


@pytest.mark.parametrize("line", BROKEN.values(), ids=BROKEN.keys())
def test_one_broken_line_costs_its_own_figure(line: str) -> None:
    found = read_figures(f"{TEXTS['traffic']}{line}\n")
    assert found.unreadable == ("prompt_tokens",)
    assert found.prompt_tokens is found.hit_rate is None
    assert found.hit_tokens == recorded_figures("traffic").hit_tokens


TTFT = "sglang:time_to_first_token_seconds"
HISTOGRAMS = {
    "a bucket without a bound": f"{TTFT}_bucket 1\n{TTFT}_sum 1",
    "a bound that is a word": f'{TTFT}_bucket{{le="far"}} 1\n{TTFT}_bucket{{le="+Inf"}} 1\n'
    f"{TTFT}_sum 1",
    "a bound that is NaN": f'{TTFT}_bucket{{le="NaN"}} 1\n{TTFT}_bucket{{le="+Inf"}} 1\n'
    f"{TTFT}_sum 1",
    "no last bucket": f'{TTFT}_bucket{{le="1"}} 1\n{TTFT}_sum 1',
    "no sum": f'{TTFT}_bucket{{le="+Inf"}} 1',
    "a sum alone": f"{TTFT}_sum 1",
    "counts that fall": f'{TTFT}_bucket{{le="1"}} 2\n{TTFT}_bucket{{le="+Inf"}} 1\n{TTFT}_sum 1',
    "bounds without end": "".join(f'{TTFT}_bucket{{le="{i}"}} 1\n' for i in range(1000))
    + f'{TTFT}_bucket{{le="+Inf"}} 1\n{TTFT}_sum 1',
}


@pytest.mark.parametrize("lines", HISTOGRAMS.values(), ids=HISTOGRAMS.keys())
def test_a_histogram_that_is_none_is_absent(lines: str) -> None:
    found = figures_of(lines)
    assert found.unreadable == ("ttft",)
    assert found.ttft is found.ttft_requests is found.ttft_mean_seconds is None


def test_a_bad_line_of_a_rank_that_does_not_speak_is_nobodys_loss() -> None:
    name = "sglang:hicache_host_used_tokens"
    found = figures_of(f'{name}{{tp_rank="1"}} NaN\n{name}{{tp_rank="0"}} 7\n')
    assert (found.l2_tokens, found.unreadable) == (7, ())


def test_labels_without_end_are_folded() -> None:
    """SGLang puts a request's own labels on its counters: one for each customer."""
    count = 20_000
    text = "".join(
        f'sglang:prompt_tokens_total{{customer="{i}",priority="{i % 977}"}} 2\n'
        f'sglang:hicache_dropped_tokens_total{{reason="r{i}",pool="kv"}} 1\n'
        for i in range(count)
    )
    with fake_engine(answer(text)) as engine, sidecar([Address(None, engine.url)], 60) as client:
        found = scrape(client)
    assert found["hiqcache_up", ()] == 1
    assert found["hiqcache_prompt_tokens_total", ()] == 2 * count
    dropped = {k: v for k, v in found.items() if k[0] == "hiqcache_dropped_tokens_total"}
    assert len(dropped) == 3
    assert found["hiqcache_dropped_tokens_total", (("reason", "other"),)] == count


def priorities(name: str, total: float, parts: dict[str, float]) -> str:
    return "".join(
        f'{name}{{priority="{priority}",tp_rank="0"}} {value}\n'
        for priority, value in {"": total, **parts}.items()
    )


def test_requests_of_each_priority_are_parts_of_the_total() -> None:
    """`--enable-priority-scheduling`: the total has an empty priority."""
    found = figures_of(
        priorities("sglang:num_queue_reqs", 6, {"0": 4, "1": 2})
        + priorities("sglang:num_running_reqs", 1, {"0": 1, "None": 0})
    )
    assert (found.queued_requests, found.running_requests) == (6, 1)


def test_prompt_tokens_of_each_priority_are_added() -> None:
    """A request without a priority is counted under an empty one, beside the others."""
    assert figures_of(priorities("sglang:prompt_tokens_total", 5, {"1": 7})).prompt_tokens == 12


@pytest.mark.parametrize("attention", [False, True], ids=["--dp-size", "--enable-dp-attention"])
def test_tokens_bytes_and_records_are_of_the_same_replicas(attention: bool) -> None:
    """Under attention data parallelism SGLang numbers the ranks of the scheduler through."""
    each, held, size = 100, 60, 15_360

    def labels(replica: int) -> str:
        return f'{{tp_rank="{replica if attention else 0}",pp_rank="0",dp_rank="{replica}"}}'

    text = "".join(
        f"sglang:hicache_host_total_tokens{labels(replica)} {each}\n"
        f"sglang:hicache_host_used_tokens{labels(replica)} {held}\n"
        f"hiqcache_engine_pool_bytes{labels(replica)} {each * size}\n"
        f"hiqcache_engine_bytes_per_token{labels(replica)} {size}\n"
        f"hiqcache_engine_backup_records_total{labels(replica)} {held * 60}\n"
        for replica in range(2)
    )
    found = figures_of(text)
    assert (found.l2_tokens, found.l2_tokens_max) == (2 * held, 2 * each)
    assert (found.l2_bytes, found.l2_bytes_max) == (2 * held * size, 2 * each * size)
    assert found.backup_records == 2 * held * 60


VALUES = st.one_of(
    st.sampled_from(["NaN", "-1", "+Inf", "-Inf", "1e999", "", "1_0", "0x1", "1 2", "\u0661"]),
    st.floats().map(repr),
    st.text(max_size=8),
)
LABEL_NAMES = ("le", "pool", "reason", "cache_source", "tp_rank", "dp_rank", "priority", "codec")
LABELS = st.dictionaries(st.sampled_from(LABEL_NAMES), st.text(max_size=6), max_size=3)


@st.composite
def lines(draw: Callable[..., object]) -> str:
    name, labels, value = draw(st.sampled_from(NAMES)), draw(LABELS), draw(VALUES)
    assert isinstance(labels, dict)
    pairs = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{pairs}}} {value}"


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.one_of(lines(), st.text(max_size=40)), max_size=6))
def test_any_lines_make_figures_or_none(broken: list[str]) -> None:
    check(figures_of("\n".join(broken)))


def test_300_damaged_texts_are_figures_or_one_sentence() -> None:
    refused = 0
    for seed in range(300):
        text = damaged(random.Random(seed))
        if Failure.of_text(text, sglang=is_sglang(text)):
            refused += 1
        else:
            check(read_figures(text))
    assert 0 < refused < 300


def damaged(chance: random.Random) -> str:
    """A recorded text in which something was cut, doubled, swapped or overwritten."""
    text = chance.choice(list(TEXTS.values()))
    for _ in range(chance.randint(1, 20)):
        at = chance.randrange(len(text))
        to = min(len(text), at + chance.choice((1, 5, 200, 20_000)))
        noise = "".join(chance.choices(string.printable + "\u00e9\x00\u2028", k=5))
        text = chance.choice(
            (
                text[:at] + text[to:],
                text[:at] + noise + text[to:],
                text[:to] + text[at:],
                text[:at] + text[at:to][::-1] + text[to:],
            )
        )
        text = text or "\n"
    return text


def check(figures: Figures) -> None:
    """Every value is a number of its kind or None, and the JSON takes it."""
    for name, value in figures.values.items():
        parts = value
        if isinstance(value, Histogram):
            parts = {str(bound): count for bound, count in value.buckets} | {"": value.total}
        numbers = parts.values() if isinstance(parts, dict) else [parts]
        for number in numbers:
            if isinstance(number, float | int):
                # What is left of too few bytes is below zero, and an alarm.
                least = -math.inf if name.endswith("_bytes_per_token") else 0
                assert least <= number < math.inf, name
    assert set(figures.unreadable) <= set(figures.values)
    assert all(figures.values[name] is None for name in figures.unreadable)
    figures_json(figures)
