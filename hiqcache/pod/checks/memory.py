"""Whether L2 fits into the memory that this machine or container allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from hiqcache import capacity
from hiqcache.cgroup import memory_headroom, memory_in_use, memory_limit
from hiqcache.codec.catalog import listed_codecs
from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check
from hiqcache.pod.plan import Plan

NAME = "memory"
RESERVE_BYTES = 10 * 2**30
"""SGLang's `HICACHE_HOST_MEMORY_RESERVE_BYTES`: what it leaves free beside L2."""

FRONT_BYTES = 1_600_000_000
RANK_BYTES = 1_300_000_000
"""SGLang's HTTP server and detokenizer together, and the scheduler of one rank: private memory of
a running server on the CPU with a model of 135M parameters. On a GPU it is more, so what passes
here can still be refused by the scheduler, and what fails here would be."""


@dataclass(frozen=True)
class Memory:
    """Memory that can be had here, in bytes.

    Parameters
    ----------
    free
        What the kernel can give, page cache counted as free.
    limit, in_use
        Of the tightest control group, None without a limit; `room` is what it still allows.
    """

    free: int
    limit: int | None
    in_use: int | None
    room: int | None

    @classmethod
    def read(cls, root: Path = Path("/")) -> Memory:
        """Read `/proc/meminfo` and the control groups under `root`."""
        lines = (root / "proc/meminfo").read_text().splitlines()
        fields = {
            name: rest.split()[0] for name, _, rest in (line.partition(":") for line in lines)
        }
        free = int(fields["MemAvailable"]) * 1024
        return cls(free, memory_limit(root), memory_in_use(root), memory_headroom(root))

    @property
    def available(self) -> int:
        return self.free if self.room is None else min(self.free, self.room)

    @property
    def limited(self) -> bool:
        """Whether a control group allows less than the machine has."""
        return self.room is not None and self.room <= self.free

    def __str__(self) -> str:
        if not self.limited or self.limit is None:
            return f"{gigabytes(self.available)} are free on this machine"
        return (
            f"{gigabytes(self.available)} can be had (container limit {gigabytes(self.limit)}, "
            f"{gigabytes(self.in_use or 0)} in use)"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:.1f} GB"


def process_bytes(plan: Plan) -> int:
    return FRONT_BYTES + RANK_BYTES * plan.ranks.on_a_host


def largest_size(plan: Plan, memory: Memory) -> int:
    """The largest `--hicache-size` that fits beside the reserve and the processes; 0 if none.

    SGLang divides what is free among the ranks that start together, and by then others may have
    taken theirs: with its own pool the last of N ranks gets a share of what N - 1 have left.
    HiQCache lets all ranks look before the first one takes anything.
    """
    ranks = plan.ranks
    shares = ranks.on_a_host
    if not plan.enabled:
        shares += ranks.started_together - 1
    left = memory.available - RESERVE_BYTES - process_bytes(plan)
    return max(0, int(left // shares // 1e9))


def check_memory(plan: Plan, memory: Memory) -> Check:
    """Refuse an L2 that SGLang would refuse, or the kernel would kill, after minutes of loading."""
    l2 = plan.l2_bytes()
    if l2 == 0:
        return Check(NAME, "skipped", f"no L2 was asked for; {memory}")
    if l2 is None:
        return Check(
            NAME,
            "skipped",
            f"how large L2 becomes depends on the model and its L1; {memory}",
            "--hicache-size makes it a known size",
        )
    process = process_bytes(plan)
    need = l2 + RESERVE_BYTES + process
    count = plan.ranks.on_a_host
    ranks = f" for {count} ranks" if count > 1 else ""
    wants = (
        f"L2 takes {gigabytes(l2)}{ranks}, SGLang leaves 10 GiB ({gigabytes(RESERVE_BYTES)}) free "
        f"beside it and its processes take about {gigabytes(process)}, together "
        f"{gigabytes(need)} of memory"
    )
    fits = largest_size(plan, memory)
    if need <= memory.available:
        if plan.l2_gigabytes and plan.l2_gigabytes > fits:
            return Check(
                NAME,
                "warning",
                f"{wants}; {memory}. SGLang's own pool may be refused all the same, on the rank "
                f"that looks last",
                f"set --hicache-size {fits} or less" if fits else "give it more memory",
            )
        return Check(NAME, "ok", f"{wants}; {memory}")
    more = f"free {math.ceil((need - memory.available) / 1e9)} GB on this machine"
    if memory.limited and memory.limit is not None:
        limit = memory.limit + need - memory.available
        more = f"raise the container's memory limit to {math.ceil(limit / 2**30)} GiB"
    less = f", or set --hicache-size {fits} or less" if fits else "; as it is, no L2 fits"
    return Check(NAME, "failed", f"{wants}, but {memory}", more + less)


def check_largest(plan: Plan, memory: Memory) -> Check:
    """The largest L2 that can be pinned here, in SGLang's own unit and in tokens."""
    name = "largest L2"
    fits = largest_size(plan, memory)
    if not fits:
        return Check(
            name,
            "warning",
            f"no L2 fits beside SGLang's 10 GiB and its processes; {memory}",
            "give the machine or container more memory",
        )
    text = f"--hicache-size {fits}{' a rank' if plan.ranks.on_a_host > 1 else ''}"
    geometry = plan.geometry()
    if geometry is not None:
        try:
            pools = [
                capacity.by_size(
                    geometry,
                    codec,
                    fits,
                    page_size=plan.page_size,
                    tp=plan.ranks.attention_tp,
                )
                for codec in listed_codecs()
            ]
        except HiQCacheError as error:
            return Check(name, "ok", f"{text} ({error})")
        tokens = ", ".join(f"{pool.tokens:,} tokens in {pool.codec}" for pool in pools)
        text += f": {tokens}"
    return Check(name, "ok", text)
