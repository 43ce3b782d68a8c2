"""Experiments A and B end to end, in small: real servers, SGLang's own benchmark client."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hiqcache.cli import main
from hiqcache.lab.experiment.report import report
from hiqcache.lab.experiment.row import Figures, load_provenance, load_rows
from tests.engine.conftest import GPU, GPU_ARGUMENTS

pytestmark = pytest.mark.engine

ARMS = "bf16-write_back,int8-write_back"
BYTES = {"bf16": 23_040, "int8": 15_360}
# 8 prefixes of 256 tokens, three prompts each; BF16's L2 holds 1,129 tokens, INT8's 1,693.
SHAPE = "--groups 8 --prompts 3 --prefix 256 --question 16 --output 4 --concurrency 2"
POOLS = "--l1-tokens 600 --l2-bytes 26000000"
PAGE = Path(__file__).parents[2] / "docs/experiment-b-results.md"


def test_the_pages_example_is_what_runs_here() -> None:
    page = " ".join(PAGE.read_text().replace("\\\n", " ").split())
    assert f"--arms {ARMS} --no-warm-up --repeats b=1 {SHAPE} {POOLS} ```" in page


def test_a_and_b_in_small(model: str, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = out / "experiment"
    shutil.rmtree(results, ignore_errors=True)
    command = ["experiment", "run", "b", "a", "--model", model, "--arms", ARMS, "--no-warm-up"]
    command += [*SHAPE.split(), *POOLS.split(), "--repeats", "b=1", "--logs", str(out / "logs")]
    server = " ".join(GPU_ARGUMENTS) if GPU else "--chunked-prefill-size 1024"
    assert main([*command, "--server-arguments", server, "--out", str(results)]) == 0
    said = capsys.readouterr().err
    assert "4 runs on 3 servers, 96 requests: about " in said
    assert f"hiqcache report {results} prints its tables" in said
    rows = {(row.experiment, row.codec): row for row in load_rows(results)}
    plain = "off" if GPU else "bf16"
    a = {"bf16": rows["a", plain], "int8": rows["a", "int8"]}
    b = {"bf16": rows["b", plain], "int8": rows["b", "int8"]}
    found = {}
    for experiment, arms in (("a", a), ("b", b)):
        for codec, row in arms.items():
            figures = row.figures
            assert isinstance(figures, Figures)
            assert figures.restore_tokens == figures.l2_hit_tokens > 0
            assert figures.backup_bytes_per_token == BYTES[codec]
            assert figures.restore_bytes_per_token == BYTES[codec]
            assert figures.l2_tokens == row.capacity_tokens
            assert row.capacity_tokens >= (figures.l2_used_tokens or 0) > 0
            assert figures.requests == 24
            found[experiment, codec] = figures
    assert [row.get("l2_tokens") for row in b.values()] == [1129, 1693]
    assert [row.get("l2_tokens") for row in a.values()] == [1129, 1129]
    assert a["int8"].capacity_bytes * 3 == a["bf16"].capacity_bytes * 2
    assert found["b", "int8"].l2_hit_tokens > found["b", "bf16"].l2_hit_tokens
    # Which requests share a batch is timing: each is 4 points of so small a workload.
    assert abs(found["a", "int8"].hit_rate - found["a", "bf16"].hit_rate) < 0.09
    assert load_provenance(results)[0]["sglang"] == "0.5.23"
    text = report(results)
    assert "Experiment A" in text and "Experiment B" in text
    capsys.readouterr()
    assert main([*command, "--out", str(results)]) == 2, "results are never overwritten"
    assert "never overwritten" in capsys.readouterr().err
    assert main([*command, "--resume", str(results)]) == 0, "everything is there already"
    assert len(load_rows(results)) == 4
