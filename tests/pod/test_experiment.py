"""Experiment B in small, its arms as containers of the server image."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiqcache.cli import main
from hiqcache.lab.experiment.row import load_provenance, load_rows
from hiqcache.lab.model import smollm2
from hiqcache.lab.serving.container import NAME

from .docker import Engine

ARMS = {"bf16-write_back": 23_040, "int8-write_back": 15_360}
# 8 prefixes of 512 tokens, twice each; BF16's L2 holds 2,257 tokens, INT8's 3,386.
SHAPE = "--groups 8 --prompts 2 --prefix 512 --question 16 --output 4 --concurrency 2"
POOLS = "--l1-tokens 1200 --l2-bytes 52000000"


@pytest.fixture
def engine_of_sdk(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine of these tests where the Docker SDK looks for one."""
    if host := engine.environment.get("DOCKER_HOST"):
        monkeypatch.setenv("DOCKER_HOST", host)
    return engine


def test_each_arm_runs_as_a_container(
    engine_of_sdk: Engine, server_image: str, tmp_path: Path
) -> None:
    results, logs = tmp_path / "results", tmp_path / "logs"
    command = ["experiment", "run", "b", "--model", str(smollm2.prepare())]
    command += ["--arms", ",".join(ARMS), "--no-warm-up", *SHAPE.split(), *POOLS.split()]
    command += ["--repeats", "b=1", "--out", str(results), "--logs", str(logs)]
    assert main([*command, "--container-image", server_image]) == 0
    rows = {row.arm: row for row in load_rows(results)}
    assert rows.keys() == ARMS.keys()
    for arm, bytes_per_token in ARMS.items():
        assert rows[arm].get("restore_bytes_per_token") == bytes_per_token
        assert rows[arm].get("restore_tokens") == rows[arm].get("l2_hit_tokens") != 0
        log = next(logs.rglob(f"{arm}.log")).read_text()
        assert "HiQCache: codec=" in log, "the container's own output is kept"
    assert rows["int8-write_back"].get("l2_tokens") == 3386
    image = engine_of_sdk.inspect(server_image)
    assert load_provenance(results)[0]["image"] == image["Id"]
    assert not engine_of_sdk.run("ps", "--all", "--quiet", "--filter", f"name={NAME}")


def test_an_image_that_is_not_there_is_named(
    engine_of_sdk: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["experiment", "run", "b", "--model", str(smollm2.prepare()), *SHAPE.split()]
    command += [*POOLS.split(), "--arms", ",".join(ARMS), "--out", str(tmp_path / "results")]
    assert main([*command, "--container-image", "hiqcache-nowhere:1"]) != 0
    said = capsys.readouterr().err
    assert "no image hiqcache-nowhere:1" in said and "docker compose build" in said
    assert not (tmp_path / "results").exists()
