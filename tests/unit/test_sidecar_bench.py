"""`hiqcache bench scrape` on a recorded text: figures that fit together, no timing asserted."""

from __future__ import annotations

import argparse
import json

import pytest

from hiqcache.errors import HiQCacheError, UsageError
from hiqcache.lab.commands.bench_scrape import add_scrape_bench
from tests.unit.sidecar_cases import RECORDED, TEXTS

TEXT = RECORDED / "traffic.txt"


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_scrape_bench(parser.add_subparsers())
    args = parser.parse_args(["scrape", *arguments])
    code: int = args.run(args)
    return code


def test_the_bench_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--text", str(TEXT), "--repeats", "5", "--seconds", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engine_bytes"] == len(TEXTS["traffic"])
    assert found["source"] == "a recorded text"
    assert found["scrapes_per_second"] > 0
    assert found["cpu_ms"] > 0
    difference = found["sidecar"]["p50_ms"] - found["engine"]["p50_ms"]
    assert found["added_p50_ms"] == pytest.approx(difference)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--text", "none.txt"),
        ("--engine", "127.0.0.1"),
        ("--engine", "a=http://127.0.0.1"),
        ("--text", str(TEXT), "--repeats", "1"),
    ],
)
def test_bad_input_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run(*arguments)


def test_an_engine_that_is_not_there_is_an_error() -> None:
    with pytest.raises(HiQCacheError):
        run("--engine", "http://127.0.0.1:9", "--seconds", "1")
