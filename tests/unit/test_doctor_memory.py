"""L2 against the memory that there is: SGLang's own constant, and every figure in the refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hiqcache.pod.checks.memory import (
    FRONT_BYTES,
    RANK_BYTES,
    RESERVE_BYTES,
    Memory,
    check_largest,
    check_memory,
    largest_size,
)
from hiqcache.pod.plan import Plan

ROOMY = Memory(free=200 * 10**9, limit=None, in_use=None, room=None)


def contained(gibibytes: int) -> Memory:
    """A container on a large machine."""
    limit = gibibytes * 2**30
    return Memory(free=200 * 10**9, limit=limit, in_use=0, room=limit)


def plan(*arguments: str) -> Plan:
    return Plan.parse(("--enable-hierarchical-cache", *arguments), {})


def test_the_reserve_is_sglangs() -> None:
    base = pytest.importorskip("sglang.srt.mem_cache.pool_host.base")
    assert base.HICACHE_HOST_MEMORY_RESERVE_BYTES == RESERVE_BYTES


def test_what_fits_is_ok_and_what_does_not_names_every_figure() -> None:
    assert check_memory(plan("--hicache-size", "8"), contained(28)).status == "ok"
    refused = check_memory(plan("--hicache-size", "12"), contained(16))
    assert refused.status == "failed"
    line = refused.line()
    assert "L2 takes 12.0 GB" in line and "10 GiB (10.7 GB)" in line
    assert "container limit 17.2 GB" in line
    assert "raise the container's memory limit to 24 GiB" in line
    assert "set --hicache-size 3 or less" in line
    assert "\n" not in line


def test_the_advice_is_right() -> None:
    for gibibytes in range(8, 64):
        memory = contained(gibibytes)
        fits = largest_size(plan(), memory)
        if fits:
            assert check_memory(plan("--hicache-size", str(fits)), memory).status == "ok"
        above = check_memory(plan("--hicache-size", str(fits + 1)), memory)
        assert above.status == "failed"
        raised = int(above.fix.partition("limit to ")[2].partition(" ")[0])
        again = check_memory(plan("--hicache-size", str(fits + 1)), contained(raised))
        assert again.status == "ok"
        less = check_memory(plan("--hicache-size", str(fits + 1)), contained(raised - 1))
        assert less.status == "failed"


def test_a_container_too_small_for_any_l2() -> None:
    refused = check_memory(plan("--hicache-size", "1"), contained(8))
    assert refused.status == "failed" and "no L2 fits" in refused.fix
    assert check_largest(plan(), contained(8)).status == "warning"


def test_each_rank_has_an_l2_of_its_own() -> None:
    line = check_memory(plan("--hicache-size=8", "--tp=4"), ROOMY).text
    assert "L2 takes 32.0 GB for 4 ranks" in line
    assert "1.3 GB" not in line and "6.8 GB" in line


# Each row: what is counted, and who asks for it (field reports of doctor and sizing).
@pytest.mark.parametrize(
    ("arguments", "processes"),
    [
        (("--dp-size", "8"), 8),
        (("--pp-size", "2", "--tp", "4"), 8),
        (("--tp", "16", "--nnodes", "2"), 8),
        (("--tp", "8", "--attn-dp-size", "8"), 8),
        (("--tp", "8", "--dp-size", "8", "--enable-dp-attention"), 8),
        (("--data-parallel-size=2", "--tensor-parallel-size=2"), 4),
    ],
)
def test_replicas_stages_and_nodes_are_counted(arguments: tuple[str, ...], processes: int) -> None:
    asked = plan("--hicache-size", "60", *arguments)
    assert asked.ranks.on_a_host == processes
    assert asked.l2_bytes() == 60 * 10**9 * processes
    roomy = Memory(free=400 * 10**9, limit=None, in_use=None, room=None)
    refused = check_memory(asked, roomy)
    assert refused.status == ("failed" if processes == 8 else "ok")


def test_the_largest_l2_is_what_the_last_rank_may_take() -> None:
    # 30 GB beside reserve and processes; the last of four ranks gets a quarter of 30 - 3 x size.
    ranks = ("--tp", "4")
    left = 30 * 10**9
    memory = Memory(left + RESERVE_BYTES + FRONT_BYTES + 4 * RANK_BYTES, None, None, None)
    assert largest_size(plan(*ranks), memory) == 4
    encoded = Plan.parse(("--enable-hierarchical-cache", *ranks), {"HIQCACHE_CODEC": "int8"})
    assert largest_size(encoded, memory) == 7
    between = check_memory(plan(*ranks, "--hicache-size", "7"), memory)
    assert between.status == "warning" and "--hicache-size 4 or less" in between.fix


def test_a_full_machine_is_not_called_a_container() -> None:
    memory = Memory(free=9 * 10**9, limit=64 * 2**30, in_use=0, room=64 * 2**30)
    refused = check_memory(plan("--hicache-size", "8"), memory)
    assert "on this machine" in refused.text and "free 13 GB on this machine" in refused.fix


def test_a_ratio_is_computed_where_the_model_is_known() -> None:
    known = plan(
        *("--model-path", "Qwen/Qwen3-8B"),
        *("--hicache-ratio", "2", "--max-total-tokens", "100000"),
    )
    # 200,001 tokens of 147,456 bytes.
    assert known.l2_bytes() == 200_001 * 147_456
    assert check_memory(known, contained(28)).status == "failed"
    assert check_memory(known, ROOMY).status == "ok"
    unknown = plan("--model-path", "someone/else", "--hicache-ratio", "2")
    assert check_memory(unknown, ROOMY).status == "skipped"


def test_without_an_l2_there_is_nothing_to_check() -> None:
    assert check_memory(Plan(model="m"), contained(1)).status == "skipped"


def test_the_largest_l2_in_tokens() -> None:
    text = check_largest(plan("--model-path", "Qwen/Qwen3-8B"), contained(21)).text
    assert text.startswith("--hicache-size 8:")
    assert "54,254 tokens in bf16" in text and "96,451 tokens in int8," in text


def test_memory_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   40 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("30720\n")
    (group / "memory.current").write_text("10240\n")
    (group / "memory.stat").write_text("anon 10240\n")
    memory = Memory.read(tmp_path)
    assert (memory.free, memory.limit, memory.in_use) == (40_960, 30_720, 10_240)
    assert memory.available == 20_480
    assert Memory.read().available > 0
