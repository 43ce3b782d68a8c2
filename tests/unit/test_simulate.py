"""The simulator: worked examples, and what real servers measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from hiqcache.cli import main
from hiqcache.simulate.replay import Prediction, Request, l1_for_all, replay
from hiqcache.simulate.trace import read_trace, write_trace
from hiqcache.simulate.tree import Tree

RESULTS = Path(__file__).parents[2] / "results/experiments"
POINTS = 0.03


def ask(*names: str, tokens: int = 100, output: int = 0) -> list[Request]:
    """Prompts of a named prefix each, and a question of 10 tokens that nobody else asks."""
    return [
        Request(((name, tokens), (("q", index), 10)), output) for index, name in enumerate(names)
    ]


def one_by_one(requests: list[Request], l1: int, l2: int, *, write_back: bool = True) -> Prediction:
    return replay(requests, l1, l2, write_back=write_back, concurrency=1)


def test_l1_alone_evicts_the_least_recently_used() -> None:
    # Two prompts of 110 fit: b goes when c comes, since a was asked again.
    found = one_by_one(ask("a", "b", "a", "c", "a", "b"), 235, 0)
    assert (found.l1_hit_tokens, found.l2_hit_tokens) == (200, 0)


def test_write_back_keeps_the_tiers_apart() -> None:
    names = ("a", "b", "c", "d", "a", "b", "c", "d")
    kept = one_by_one(ask(*names), 235, 400)
    assert kept.l1_hit_tokens + kept.l2_hit_tokens == 400
    assert kept.l2_hit_tokens > 0
    # L2 holds nothing but what L1 gave away: 4 prompts need more than either tier alone.
    assert kept.l2_used_tokens <= 400


def test_write_through_copies_at_once_and_shares_with_l1() -> None:
    found = one_by_one(ask("a", "b"), 1000, 1000, write_back=False)
    assert found.backup_tokens == found.l2_used_tokens == 220
    assert one_by_one(ask("a", "b"), 1000, 1000).backup_tokens == 0
    # The same L2 holds less that is new: a cyclic order of four finds nothing.
    names = ("a", "b", "c", "d") * 2
    through = one_by_one(ask(*names), 235, 235, write_back=False)
    back = one_by_one(ask(*names), 235, 235)
    assert through.hit_rate <= back.hit_rate


def test_a_short_tail_is_computed_rather_than_restored() -> None:
    requests = [Request((("a", 9),)), Request((("b", 90),)), Request((("a", 9),))]
    assert one_by_one(requests, 97, 500).l2_hit_tokens == 0
    longer = [Request((("a", 10),)), Request((("b", 90),)), Request((("a", 10),))]
    # A prefill computes one token of a prompt that is cached whole.
    assert one_by_one(longer, 97, 500).l2_hit_tokens == 9


def test_two_prompts_of_one_batch_both_compute_what_is_new_to_both() -> None:
    requests = ask("warm", "a", "a", "a")
    together = replay(requests, 2000, 0, write_back=True, concurrency=4)
    assert together.l1_hit_tokens == 0
    assert one_by_one(requests, 2000, 0).l1_hit_tokens == 200
    # A chunk of one prompt puts them in batches of their own.
    chunked = replay(requests, 2000, 0, write_back=True, concurrency=4, chunk=110, overlap=False)
    assert chunked.l1_hit_tokens == 200
    # With overlap the second one is chosen before the first one's result is in the tree.
    overlapped = replay(requests, 2000, 0, write_back=True, concurrency=4, chunk=110)
    assert overlapped.l1_hit_tokens == 100


def test_what_runs_stays_in_l1() -> None:
    requests = ask("a", "b", "c", output=20)
    found = replay(requests, 270, 0, write_back=True, concurrency=3)
    assert found.requests == 3


def test_a_server_refuses_prompts_that_l1_cannot_hold_and_cuts_answers() -> None:
    # SGLang refuses from L1 - 6 tokens on, and cuts an answer to L1 - prompt - 2.
    requests = [Request((("a", 94),)), Request((("b", 93),), 5), Request((("c", 93),), 6)]
    found = replay(requests, 100, 0, write_back=True, concurrency=1)
    assert (found.requests, found.refused, found.shortened) == (3, 1, 1)
    assert found.prompt_tokens == 186
    assert l1_for_all(requests) == 101
    whole = replay(requests, 101, 0, write_back=True, concurrency=1)
    assert (whole.refused, whole.shortened, whole.prompt_tokens) == (0, 0, 280)


@pytest.mark.parametrize("write_back", [True, False])
def test_slots_add_up(write_back: bool) -> None:
    names = [f"g{(7 * index * index) % 23}" for index in range(400)]
    requests = ask(*names, output=8)
    found = replay(requests, 1000, 900, write_back=write_back, concurrency=5, chunk=300)
    assert 0 < found.l2_used_tokens <= 900
    assert found.prompt_tokens == 400 * 110
    assert found.backup_tokens >= found.l2_used_tokens


def test_a_tree_gives_every_slot_back() -> None:
    tree = Tree(100, 50, write_back=True)
    path = tree.match([("a", 60)])
    tree.l1_free -= 60
    tree.insert(path, [("a", 60)])
    assert not tree.make_room(50), "it is locked"
    tree.unlock(path)
    assert tree.make_room(100)
    # 60 tokens do not fit in an L2 of 50: dropped, not kept in part.
    assert (tree.l1_free, tree.l2_free, tree.match([("a", 60)])) == (100, 50, [])


def test_more_l2_never_hits_less_here() -> None:
    names = [f"g{(13 * index * index) % 31}" for index in range(500)]
    rates = [one_by_one(ask(*names), 500, l2).hit_rate for l2 in (0, 500, 1000, 2000, 4000, 10_000)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


@pytest.mark.parametrize("name", ["cpu-8x128", "h200-qwen3-8b"])
def test_real_servers_agree(name: str) -> None:
    """In the median of an arm's runs: which requests share a batch is timing in a single one."""
    pytest.importorskip("sglang")
    from hiqcache.lab.experiment.predict import predict_row
    from hiqcache.lab.experiment.row import Figures, load_rows

    gaps: dict[tuple[str, int], list[float]] = {}
    for row in load_rows(RESULTS / name):
        if isinstance(row.figures, Figures):
            gap = predict_row(row).hit_rate - row.figures.hit_rate
            gaps.setdefault((row.arm, row.workload.groups), []).append(gap)
    assert len(gaps) >= 9
    assert {arm: median(of) for arm, of in gaps.items() if abs(median(of)) > POINTS} == {}


def test_a_trace_reads_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    requests = ask("a", "b", output=3)
    requests = [Request(tuple((str(k), n) for k, n in r.blocks), r.output) for r in requests]
    write_trace(path, requests)
    assert read_trace(str(path)).requests == requests
    with pytest.raises(FileExistsError):
        write_trace(path, requests)


def test_the_command_prints_every_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, [Request(((f"g{i % 60}", 2048), (f"q{i}", 64)), 32) for i in range(300)])
    arguments = ["--geometry", "qwen3-8b", "--l1-tokens", "16384", "--hicache-size", "8"]
    arguments += ["--policy", "write_back"]
    assert main(["simulate", str(path), *arguments, "--json"]) == 0
    rows = {row["codec"]: row for row in json.loads(capsys.readouterr().out)["codecs"]}
    assert [rows[codec]["l2_tokens"] for codec in ("bf16", "int8", "int8-compact")] == [
        54254,
        96451,
        106838,
    ]
    assert rows["none"]["l2_hit_tokens"] == 0
    # 60 prefixes in turn are 146,000 tokens: more than any L2 but within one of L1 and L2.
    assert rows["int8"]["hit_rate"] >= rows["bf16"]["hit_rate"]
