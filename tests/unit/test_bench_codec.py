"""The codec benchmark: what it reports and refuses. Times themselves are never asserted."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from hiqcache import cli
from hiqcache.codec import int8
from hiqcache.codec.bound_report import BoundViolation
from hiqcache.codec.catalog import codec_entry, listed_codecs
from hiqcache.lab.bench import codec as bench
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.bench.shape import Shape

SMALL = ["bench", "codec", "--tokens", "5", "--geometry", "2,3,64", "--repeats", "2"]


@pytest.fixture(autouse=True)
def only_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"bench": cli.LAB})


def test_json_carries_figures_and_provenance(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["tokens"], report["heads"], report["head_dim"], report["layers"]) == (
        5,
        3,
        64,
        2,
    )
    assert (report["threads"], report["repeats"]) == (1, 2)
    assert report["bf16_bytes"] == 5 * 2 * 2 * 3 * 64 * 2
    assert {"torch", "device_name", "commit", "date", "hiqcache"} <= report["provenance"].keys()
    names = list(listed_codecs())
    assert [row["codec"] for row in report["codecs"]] == names
    for row in report["codecs"]:
        sides = [codec_entry(row["codec"]).layout(side, 3, 64).record_bytes for side in ("k", "v")]
        assert row["bytes_per_token"] == 2 * sum(sides)
    for row in report["codecs"]:
        for timing in (row["encode"], row["decode"], report["memcpy"]):
            assert 0 < timing["p20_ms"] <= timing["p50_ms"] <= timing["p80_ms"]
            rate = report["bf16_bytes"] / timing["p50_ms"] / 1e6
            assert math.isclose(timing["gb_per_s"], rate, rel_tol=1e-9)
    assert report["codecs"][0]["error"] == {}
    for side in ("k", "v"):
        error = report["codecs"][1]["error"][side]
        assert error["violations"] == 0 and 0 < error["max_normalized_error"] < 1


def test_table_names_codecs_and_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*SMALL, "--codec", "int8", "--codec", "bf16", "--codec", "int8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("5 tokens, 2 layers of 3 x 64: 0.0 MB")
    names = [line.partition("  ")[0] for line in lines[3:]]
    assert names == ["memcpy", "int8 encode", "int8 decode", "bf16 encode", "bf16 decode"]
    assert lines[-1].endswith("bit-exact")


def test_codec_must_be_right_before_it_is_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def truncating(rows: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
        q = (rows.float() / scale.float().unsqueeze(-1)).trunc().to(torch.int8)
        return q if out is None else out.copy_(q)

    def no_timing(*arguments: Any) -> None:
        raise AssertionError("timed a codec that is wrong")

    monkeypatch.setattr(int8, "quantize", truncating)
    monkeypatch.setattr(bench, "_timing", no_timing)
    with pytest.raises(BoundViolation, match="rounding term"):
        bench.run_codec_bench(["int8"], Shape(2, 3, 64), 5, 1)
    assert cli.main(SMALL) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_one_thread_gives_the_others_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="inside"), bench.one_thread():
            assert torch.get_num_threads() == 1
            raise RuntimeError("inside")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([3.0], 0.2, 3.0),
        ([3.0, 1.0], 0.5, 2.0),
        ([5.0, 1.0, 3.0], 0.5, 3.0),
        ([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], 0.2, 10.0),
        ([0.0, 10.0, 20.0], 0.8, 16.0),
    ],
)
def test_percentile_by_hand(values: list[float], share: float, expected: float) -> None:
    found = Percentiles.of(values)
    shares = {0.2: found.p20_ms, 0.5: found.p50_ms, 0.8: found.p80_ms}
    assert shares[share] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "BENCH"),
        (["transfers"], "invalid choice"),
        (["codec", "--tokens", "0"], "expected a positive integer, got '0'"),
        (["codec", "--tokens", "-3"], "expected a positive integer"),
        (["codec", "--tokens", "1.5"], "expected a positive integer, got '1.5'"),
        (["codec", "--repeats", "0"], "expected a positive integer"),
        (["codec", "--geometry", "8,128"], "expected LAYERS,HEADS,HEAD_DIM, got '8,128'"),
        (["codec", "--geometry", "8,128,x"], "expected a positive integer, got 'x'"),
        (["codec", "--geometry", "36,8,100"], "multiple of 8, got 100"),
        (["codec", "--codec", "int4"], "'int4'"),
        (["codec", "--tokens", "1000000"], "ask for fewer tokens"),
    ],
)
def test_bad_arguments_get_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
