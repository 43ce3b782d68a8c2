"""Limits read from the kernel's own file formats, both versions, nested and in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiqcache.cgroup import memory_headroom, memory_in_use, memory_limit

GIB = 2**30
# What version 1 reads for "no limit".
V1_NO_LIMIT = 9223372036854771712


def membership(root: Path, lines: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)


def v2(folder: Path, limit: str, used: int, inactive_file: int = 0, high: str = "max") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.high").write_text(f"{high}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon {used - inactive_file}\nfile {inactive_file}\nkernel 1\nshmem 0\n"
        f"inactive_anon 0\nactive_anon 0\ninactive_file {inactive_file}\nactive_file 0\n"
    )


def v1(folder: Path, limit: int, used: int, files: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"cache {files}\ninactive_file 7\nactive_file 7\ntotal_cache {files}\n"
        f"total_inactive_file 0\ntotal_active_file {files}\n"
    )


def test_no_limit_anywhere(tmp_path: Path) -> None:
    membership(tmp_path, "0::/user.slice\n")
    v2(tmp_path / "sys/fs/cgroup/user.slice", "max", 3 * GIB)
    assert memory_limit(tmp_path) is None
    assert memory_headroom(tmp_path) is None
    assert memory_in_use(tmp_path) == 3 * GIB


def test_a_container_of_version_2_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    membership(tmp_path, "0::/\n")
    v2(tmp_path / "sys/fs/cgroup", str(28 * GIB), 5 * GIB, inactive_file=4 * GIB)
    assert memory_limit(tmp_path) == 28 * GIB
    assert memory_in_use(tmp_path) == GIB
    assert memory_headroom(tmp_path) == 27 * GIB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    membership(tmp_path, "0::/pods/one/server\n")
    mount = tmp_path / "sys/fs/cgroup"
    v2(mount / "pods/one/server", str(64 * GIB), 2 * GIB)
    v2(mount / "pods/one", str(16 * GIB), 6 * GIB)
    v2(mount / "pods", "max", 100 * GIB)
    assert memory_limit(tmp_path) == 16 * GIB
    assert memory_in_use(tmp_path) == 6 * GIB
    assert memory_headroom(tmp_path) == 10 * GIB


def test_a_larger_limit_can_leave_less_room(tmp_path: Path) -> None:
    membership(tmp_path, "0::/full/mine\n")
    v2(tmp_path / "sys/fs/cgroup/full/mine", str(16 * GIB), GIB)
    v2(tmp_path / "sys/fs/cgroup/full", str(32 * GIB), 30 * GIB)
    assert memory_limit(tmp_path) == 16 * GIB
    assert memory_headroom(tmp_path) == 2 * GIB


def test_memory_high_is_a_limit(tmp_path: Path) -> None:
    membership(tmp_path, "0::/\n")
    v2(tmp_path / "sys/fs/cgroup", "max", GIB, high=str(8 * GIB))
    assert memory_limit(tmp_path) == 8 * GIB


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    membership(tmp_path, "5:cpu:/\n4:memory:/docker/c0ffee\n0::/\n")
    (tmp_path / "sys/fs/cgroup/unified").mkdir(parents=True)
    v1(tmp_path / "sys/fs/cgroup/memory/docker/c0ffee", 12 * GIB, 3 * GIB, files=GIB)
    v1(tmp_path / "sys/fs/cgroup/memory", V1_NO_LIMIT, 90 * GIB)
    assert memory_limit(tmp_path) == 12 * GIB
    assert memory_in_use(tmp_path) == 2 * GIB


def test_version_1_in_a_container_that_is_named_as_the_host_does(tmp_path: Path) -> None:
    membership(tmp_path, "4:memory,hugetlb:/docker/c0ffee\n")
    v1(tmp_path / "sys/fs/cgroup/memory", 12 * GIB, GIB)
    assert memory_limit(tmp_path) == 12 * GIB


@pytest.mark.parametrize("lines", [None, "", "5:cpu:/\n"])
def test_nothing_to_read(tmp_path: Path, lines: str | None) -> None:
    if lines is not None:
        membership(tmp_path, lines)
    assert memory_limit(tmp_path) is memory_in_use(tmp_path) is memory_headroom(tmp_path) is None


def test_this_machine_can_be_read() -> None:
    used = memory_in_use()
    assert used is None or used > 0
