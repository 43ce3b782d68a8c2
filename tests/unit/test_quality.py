"""Quality: prompts, divergences, intervals, the proof of restores, and what is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from hiqcache.cli import main
from hiqcache.errors import UsageError
from hiqcache.lab.quality.arms import Sizes, make_arms, make_launch
from hiqcache.lab.quality.corpus import make_prompts
from hiqcache.lab.quality.distribution import TOP, Scored, kl_divergence
from hiqcache.lab.quality.figures import figures
from hiqcache.lab.quality.interval import bootstrap, ratio, wilson
from hiqcache.lab.quality.passes import Outcome, make_fillers
from hiqcache.lab.quality.plots import plot_kl
from hiqcache.lab.quality.prompt import Prompt, longest
from hiqcache.lab.quality.prompt_file import load_prompts
from hiqcache.lab.quality.proof import restored, why_invalid
from hiqcache.lab.quality.report import BEGIN, END, as_text, write_into
from hiqcache.lab.quality.row import (
    Answered,
    Compared,
    Read,
    compare_answers,
    compare_readings,
)
from hiqcache.lab.quality.summary import InvalidRun, conclude_served, read_summary
from hiqcache.lab.row import Store, read
from hiqcache.lab.serving.client import Answer, TextReading

VOCABULARY = 1000


class Words:
    """A tokenizer of words and marks that can go both ways."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        found = re.findall(r"\w+|\s|[^\w\s]", text)
        return [self.ids.setdefault(word, len(self.ids)) for word in found]

    def decode(self, ids: tuple[int, ...]) -> str:
        words = {index: word for word, index in self.ids.items()}
        return "".join(words[index] for index in ids)


def test_shipped_prompts_have_the_lengths_asked_for_and_hold_their_answers() -> None:
    words = Words()
    prompts = make_prompts(words.encode, 200)
    assert len({prompt.name for prompt in prompts}) == 200
    for prompt in prompts:
        assert 500 <= len(prompt.prefix) <= 2000
        assert len(prompt.continuation) == 64
        if prompt.answer is not None:
            assert prompt.answer in words.decode(prompt.prefix)
            assert prompt.answer not in words.decode(prompt.question)
    starts = {prompt.prefix[:12] for prompt in prompts}
    assert len(starts) == 200, "two prompts must not share a prefix in the cache"
    depths = [p.depth for p in prompts if p.kind == "needle"]
    assert {depths.count(depth) for depth in set(depths)} == {8}
    assert make_prompts(Words().encode, 200) == prompts, "the same prompts every time"


@pytest.mark.parametrize(
    ("text", "right"),
    [(" 4821.\n", True), (" 48210", False), ('"4821"', True), (" the 4821", False), ("", False)],
)
def test_an_answer_is_right_if_it_begins_with_the_word(text: str, right: bool) -> None:
    assert prompt_of("a", answer="4821").is_right(text) is right
    assert prompt_of("a").is_right(text) is None


def prompt_of(name: str, answer: str | None = None, tokens: int = 400) -> Prompt:
    return Prompt(name, "needle" if answer else "text", tuple(range(tokens)), (1, 2, 3), (), answer)


def distributions(seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Two next-token distributions at 3 positions, as log probabilities."""
    generator = np.random.default_rng(seed)
    logits = 3 * generator.standard_normal((3, VOCABULARY))
    moved = logits + noise * generator.standard_normal(logits.shape)
    return tuple(x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (logits, moved))  # type: ignore[return-value]


def scored(logprobs: np.ndarray) -> Scored:
    ids = np.argsort(-logprobs, axis=-1)[:, :TOP]
    top = np.take_along_axis(logprobs, ids, -1).astype(np.float32)
    return Scored(logprobs[:, 5].copy(), ids.astype(np.int32), top)


@pytest.mark.parametrize("noise", [0.001, 0.03, 0.3])
def test_kl_over_the_top_tokens_is_a_close_lower_bound(noise: float) -> None:
    p, q = distributions(seed=1, noise=noise)
    whole = (np.exp(p) * (p - q)).sum(-1)
    top = kl_divergence(scored(p), scored(q))
    assert (top <= whole + 1e-7).all()
    assert (top > 0.5 * whole).all()
    assert (kl_divergence(scored(p), scored(p)) == 0).all()


def test_tied_tokens_agree_and_others_do_not() -> None:
    def one(ids: list[int], logprobs: list[float]) -> Scored:
        return Scored(np.zeros(1), np.array([ids], np.int32), np.array([logprobs], np.float32))

    first = one([7, 8, 9], [-1.0, -1.0, -2.0])
    assert first.top1_agreements(one([8, 7, 9], [-0.9, -1.0, -2.0])) == 1
    assert first.top1_agreements(one([9, 7, 8], [-0.9, -1.0, -2.0])) == 0


def test_wilson_has_its_known_values() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263.
    figure = wilson(81, 263)
    assert (round(figure["low"], 4), round(figure["high"], 4)) == (0.2553, 0.3662)
    assert wilson(10, 10)["high"] == pytest.approx(1.0)
    assert wilson(10, 10)["low"] == pytest.approx(0.7225, abs=1e-4)


def test_bootstrap_resamples_prompts() -> None:
    generator = np.random.default_rng(3)
    values = generator.normal(5, 2, 400)
    figure = bootstrap([values.tolist(), [1.0] * 400], ratio)
    assert figure["value"] == pytest.approx(values.mean())
    half = 1.96 * values.std() / 20
    assert figure["high"] - figure["value"] == pytest.approx(half, rel=0.15)
    assert figure["value"] - figure["low"] == pytest.approx(half, rel=0.15)


def test_answers_part_where_they_first_differ() -> None:
    assert compare_answers((1, 2, 3), (1, 2, 3)).first_difference is None
    assert compare_answers((1, 2, 3), (1, 9, 3)).first_difference == 1


def test_figures_of_hand_made_rows() -> None:
    rows = [
        Compared(
            comparison="int8",
            role="codec",
            prompt=f"{share}",
            kind="needle",
            depth=0.5,
            prefix_tokens=400,
            restored_share=share,
            read=Read(
                positions=64,
                kl=0.64,
                top1=60,
                nll=128.0 + change,
                reference_nll=128.0,
                identical=False,
                largest_logprob_change=0.1,
            ),
            answered=Answered(answer_tokens=12, reference_right=True, right=change < 1),
        )
        for share, change in ((0.98, 0.64), (0.96, 1.28))
    ]
    found = figures(rows)
    assert found["restored_share"] == {"least": 0.96, "median": 0.97}
    assert found["mean_kl"]["value"] == pytest.approx(0.01)
    assert found["top1_agreement"]["value"] == pytest.approx(60 / 64)
    assert found["perplexity_change"]["value"] == pytest.approx(np.expm1(1.92 / 128))
    task = found["tasks"]["needle"]
    assert (task["became_wrong"], task["became_right"]) == (1, 0)
    assert task["change"]["value"] == -0.5


def answer_of(tokens: int, device: int, host: int, ids: tuple[int, ...] = (1, 2)) -> Answer:
    return Answer(" 4821", ids, (-0.1,) * len(ids), tokens, device, host, 0.1, 0.2)


def outcome(prompt: Prompt, host: int, device: int = 0, noise: float = 0.0) -> Outcome:
    tokens = len(prompt.prefix)
    values = scored(distributions(seed=len(prompt.name), noise=noise)[1 if noise else 0])
    reading = TextReading((-1.0,) * 3, b"", b"", TOP, tokens + 3, device, host)
    return Outcome(prompt, reading, values, answer_of(tokens, device, host))


def run_of(host: int, l1_device: int = 390, cold_device: int = 0) -> dict[str, Any]:
    """The outcomes of a run of 6 prompts on 3 servers."""
    prompts = [prompt_of(f"p{'x' * index}", answer="4821") for index in range(6)]

    def passes(noise: float) -> dict[str, dict[str, Outcome]]:
        return {
            "cold": {p.name: outcome(p, 0, cold_device) for p in prompts},
            "l1": {p.name: outcome(p, 0, l1_device) for p in prompts},
            "l2": {p.name: outcome(p, host, noise=noise) for p in prompts},
        }

    noisy = {"l2": passes(0.02)["l2"]}
    return {"bf16": passes(0.0), "int8": passes(0.02), "bf16-chunk": noisy}


SETTINGS = {
    "provenance": {"device_name": "a device", "commit": "0" * 40, "date": "2026-01-01T00:00:00"},
    "model": "a model",
    "codecs": ["int8"],
    "prompts": {"source": "here", "count": 6, "prefix_tokens": [400, 400, 2400]},
}


def test_a_restored_run_has_figures_tables_and_plots(tmp_path: Path) -> None:
    summary = conclude_served(run_of(host=384), SETTINGS, Store(tmp_path))
    assert summary == read_summary(tmp_path) | {"comparisons": summary["comparisons"]} | {
        "targets": summary["targets"]
    }
    codec = summary["comparisons"]["int8"]["figures"]
    assert codec["restored_share"]["least"] == 0.96
    assert codec["mean_kl"]["value"] > 0
    control = summary["comparisons"]["bf16 restored against L1 hit"]["figures"]
    assert control["identical_readings"] == 6
    assert len(read(tmp_path / "passes.jsonl")) == 6 * 7
    assert "| int8 | 96.0% |" in as_text(summary)
    ElementTree.fromstring(plot_kl(tmp_path / "kl.svg", summary).read_text())


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (run_of(host=0), "6 of 6 prompts were not restored from L2"),
        (run_of(host=379), "6 of 6 prompts were not restored from L2"),
        (run_of(host=384, l1_device=0), "l1 pass"),
        (run_of(host=384, cold_device=300), "cold pass"),
    ],
)
def test_a_run_that_is_not_what_it_claims_is_kept_without_figures(
    tmp_path: Path, run: dict[str, Any], reason: str
) -> None:
    assert why_invalid(run) is not None
    with pytest.raises(InvalidRun, match=reason):
        conclude_served(run, SETTINGS, Store(tmp_path))
    kept = json.loads((tmp_path / "invalid.json").read_text())
    assert not kept["valid"]
    assert reason in kept["reason"]
    assert "comparisons" not in kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["invalid.json", "passes.jsonl"]
    with pytest.raises(UsageError, match="invalid run"):
        read_summary(tmp_path)


def test_one_prompt_that_was_not_restored_spoils_the_run() -> None:
    run = run_of(host=384)
    name, good = next(iter(run["int8"]["l2"].items()))
    run["int8"]["l2"][name] = outcome(good.prompt, host=100, device=284)
    assert restored(run)["int8"]["restored_prompts"] == 5
    assert "int8: 1 of 6" in str(why_invalid(run))


def test_the_report_goes_between_the_markers(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    conclude_served(run_of(host=384), SETTINGS, Store(folder))
    document = tmp_path / "quality.md"
    document.write_text(f"before\n{BEGIN}\nstale\n{END}\nafter\n")
    for _ in range(2):
        write_into(document, {folder: read_summary(folder)})
        text = document.read_text()
        assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
        assert "stale" not in text and text.count("### a model, served") == 1
    assert (tmp_path / "images" / "quality-served-kl.svg").exists()
    document.write_text("no markers")
    with pytest.raises(UsageError, match="no lines"):
        write_into(document, {folder: read_summary(folder)})


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    store = Store(tmp_path / "a" / "b")
    (store.folder / "x").touch()
    with pytest.raises(UsageError, match="never overwritten"):
        Store(store.folder)


def test_pools_push_out_l1_and_hold_everything_in_l2(tmp_path: Path) -> None:
    prompts = [prompt_of(f"p{index}", tokens=1500) for index in range(40)]
    sizes = Sizes.fit(prompts, None)
    assert sizes.l1_tokens >= 2 * longest(prompts)
    fillers = make_fillers(prompts, sizes.filler_tokens)
    assert sum(map(len, fillers)) > sizes.l1_tokens
    assert sizes.l2_tokens > sum(len(p.prefix) for p in prompts) + sum(map(len, fillers))
    assert Sizes.fit(prompts, 100_000).l1_tokens == 100_000
    noise = make_arms(("int8",), "flashinfer", sizes)[-1]
    launch = make_launch("m", ("--attention-backend", "triton"), tmp_path)
    arguments = launch.arguments_of(noise)
    backends = [arguments[i + 1] for i, a in enumerate(arguments) if a == "--attention-backend"]
    assert backends[-1] == "flashinfer", "an arm's own argument must come last"


def test_own_prompts_as_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    prefix = "word " * 200
    record = {"prefix": prefix, "continuation": "then this", "question": "what?", "answer": "that"}
    file.write_text(json.dumps(record) + "\n\n" + json.dumps({"prefix": prefix}) + "\n")
    first, second = load_prompts(file, Words().encode)
    assert (first.name, first.kind, first.answer) == ("line-001", "question", "that")
    assert len(first.continuation) == 3
    assert (second.name, second.kind, second.continuation) == ("line-003", "text", ())


def test_own_prompts_as_text_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text(" ".join(str(number) for number in range(1200)))
    cuts = load_prompts(file, Words().encode)
    assert [(len(cut.prefix), len(cut.continuation)) for cut in cuts] == [(1000, 64)] * 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "not json", "line 1: expected a JSON object"),
        ("a.jsonl", '{"prefix": 3}', 'line 1: expected an object with a string "prefix"'),
        ("a.jsonl", '{"prefix": "short"}', "has 1 tokens, expected 320"),
        ("a.jsonl", '{"prefix": "a", "prompt": "b"}', "got 'prompt'"),
        ("a.jsonl", json.dumps({"prefix": "a " * 400, "answer": " "}), "the answer is empty"),
        ("a.jsonl", "\n", "holds no prompt"),
        ("a.txt", "too little", "expected 1064 or more"),
        ("missing.txt", None, "cannot be read"),
    ],
)
def test_bad_prompt_files_are_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match=re.escape(message)):
        load_prompts(tmp_path / name, Words().encode)


@pytest.mark.parametrize(
    "arguments",
    [["run", "--codecs", "int7"], ["offline", "--count", "0"], ["report", "nowhere"], []],
)
def test_bad_arguments_end_with_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quality", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hiqcache: ") and captured.err.count("\n") == 1


def test_compared_readings_are_sums_over_positions() -> None:
    p, q = distributions(seed=2, noise=0.1)
    row = compare_readings(scored(p), scored(q))
    assert row.positions == 3
    assert row.reference_nll == pytest.approx(-p[:, 5].sum())
    assert row.nll == pytest.approx(-q[:, 5].sum())
    assert row.kl == pytest.approx(kl_divergence(scored(p), scored(q)).sum())
    assert not row.identical


def test_a_folder_with_results_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text("{}")
    for way in ("run", "offline"):
        assert main(["quality", way, "--out", str(tmp_path)]) == 2
        assert "never overwritten" in capsys.readouterr().err


def test_side_by_side_is_for_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["quality", "run", "--side-by-side", "--out", str(tmp_path)]) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
