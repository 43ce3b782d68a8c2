"""Port, shared memory, model and disk, each against the real thing."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiqcache.pod.check import Check
from hiqcache.pod.checks.machine import (
    check_disk,
    check_memlock,
    check_model,
    check_port,
    check_shared_memory,
)
from hiqcache.pod.plan import Plan
from hiqcache.ranks import Ranks


def test_a_port_that_something_listens_on() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            refused = check_port(Plan(host=host, port=port))
            assert refused.status == "failed" and str(port) in refused.text
    assert check_port(Plan(port=port)).status == "ok"


def test_a_host_that_is_not_of_this_machine() -> None:
    assert check_port(Plan(host="203.0.113.1")).status == "failed"
    assert check_port(Plan(port=70_000)).status == "failed"


@pytest.fixture
def small_shm(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this root may not mount")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_small_dev_shm(small_shm: Path) -> None:
    refused = check_shared_memory(Plan(), small_shm)
    assert refused.status == "failed"
    assert "1 MiB free, 64 MiB needed for 1 rank" in refused.text and "--shm-size" in refused.fix


def test_more_ranks_need_more_shared_memory(tmp_path: Path) -> None:
    assert (
        "1,024 MiB needed for 2 ranks"
        in check_shared_memory(Plan(ranks=Ranks(tp=2)), tmp_path).text
    )
    assert check_shared_memory(Plan(), tmp_path / "none").status == "failed"


def test_locked_memory_is_told_and_never_refused() -> None:
    assert "no limit" in check_memlock(Plan(), resource.RLIM_INFINITY).text
    low = check_memlock(Plan(), 65_536)
    assert low.status == "ok" and "64 KiB" in low.text and "does not count" in low.text


def model(path: str | None) -> Check:
    return check_model(Plan(model=path))


def test_a_model(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "config.json").write_text("{}")
    assert model(str(tmp_path)).status == "ok"
    assert model(str(tmp_path / "config.json")).status == "ok"
    for missing in (str(tmp_path / "none"), "./none", "~/none", "a/b/c"):
        refused = model(missing)
        assert refused.status == "failed" and missing in refused.text
    assert "no config.json" in model(str(tmp_path / "empty")).text
    for elsewhere in ("Qwen/Qwen3-8B", "gpt2", "s3://bucket/a/b"):
        assert model(elsewhere).status == "ok"
    assert model(None).status == "skipped"


def test_a_full_disk(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "t", str(tmp_path)]).returncode:
        pytest.skip("this root may not mount")
    try:
        refused = check_disk(Plan(model="a/b"), {"HF_HOME": str(tmp_path / "hf")})
        assert refused.status == "failed" and "HF_HOME" in refused.fix
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert check_disk(Plan(), {"HF_HOME": str(tmp_path)}).text.endswith(f"{tmp_path}/hub")
