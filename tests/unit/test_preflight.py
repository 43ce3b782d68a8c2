"""`hiqcache serve` refuses what the plugin could not see from inside SGLang."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hiqcache.errors import HiQCacheError
from hiqcache.preflight import refuse_excluded_plugin

ON = {"HIQCACHE_CODEC": "int8"}


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SGLANG_PLUGINS": "other"},
        ON,
        {**ON, "SGLANG_PLUGINS": ""},
        {**ON, "SGLANG_PLUGINS": "other, hiqcache"},
        {**ON, "SGLANG_PLATFORM": "hiqcache_cpu"},
    ],
)
def test_what_lets_the_plugin_in_passes(environ: dict[str, str]) -> None:
    refuse_excluded_plugin(environ)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({**ON, "SGLANG_PLUGINS": "other"}, "SGLANG_PLUGINS=other keeps HiQCache out"),
        ({**ON, "SGLANG_PLATFORM": "other_npu"}, "SGLANG_PLATFORM=other_npu makes SGLang leave"),
        ({"HIQCACHE_CODEC": "int9"}, "expected one of off"),
    ],
)
def test_what_keeps_it_out_is_refused(environ: dict[str, str], words: str) -> None:
    with pytest.raises(HiQCacheError, match=words):
        refuse_excluded_plugin(environ)


def test_serve_stops_before_it_starts_sglang() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hiqcache.cli", "serve", "--", "--model-path", "nowhere"],
        env={**ON, "SGLANG_PLUGINS": "other", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("hiqcache: SGLANG_PLUGINS=other")


def test_serve_becomes_the_server_with_its_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hiqcache.cli", "serve", "--", "--help"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "--enable-hierarchical-cache" in done.stdout
