"""What `hiqcache demo` does: a server with each codec, asked everything twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from hiqcache.capacity import bytes_per_token
from hiqcache.codec.catalog import BASELINE, RECOMMENDED
from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.lab.demo.plan import DemoPlan
from hiqcache.lab.fleet import Arm, Fleet, Launch, Pools
from hiqcache.lab.progress import Clock, progress
from hiqcache.lab.row import Row
from hiqcache.lab.serving.client import Answer, Client

CODECS = (BASELINE, RECOMMENDED)


class DemoFailed(HiQCacheError):
    """The demo ran and did not show what it must."""


@dataclass(frozen=True, kw_only=True)
class Finding(Row):
    """What one arm measured; tokens and bytes are the engine's own counters.

    Parameters
    ----------
    backup_bytes_per_token, restore_bytes_per_token
        Bytes over tokens of either direction.
    l2_tokens, l2_held_tokens
        Tokens that L2 can hold, and held at the end.
    restored_tokens
        Tokens that came back from L2.
    hit_rate
        Cached share of the prompt tokens in the replay.
    mean_ttft_s
        Mean time to first token in the replay.
    restored_answers, changed_answers
        Replayed answers whose prompt came back from L2, and those among them that differ from
        this arm's own first answer.
    """

    codec: str
    backup_bytes_per_token: float
    restore_bytes_per_token: float
    l2_tokens: int
    l2_held_tokens: int
    restored_tokens: int
    hit_rate: float
    mean_ttft_s: float
    restored_answers: int
    changed_answers: int
    answers: tuple[str, ...]
    arguments: tuple[str, ...] = ()


def run_demo(plan: DemoPlan, launch: Launch, geometry: Geometry) -> list[Finding]:
    """Start a server with each codec in turn, ask every prompt twice, read counters.

    Raises
    ------
    HiQCacheError
        A server failed, nothing was restored, or the bytes per token are not the record's.
    """
    arms = [_arm(codec, plan, geometry) for codec in CODECS]
    with Fleet(launch, arms) as fleet:
        return [_show(arm, plan, fleet, geometry) for arm in arms]


def _arm(codec: str, plan: DemoPlan, geometry: Geometry) -> Arm:
    ratio = repr(plan.ratio(geometry, codec))
    pools = Pools(l1_tokens=plan.l1_tokens, l2=("--hicache-ratio", ratio))
    return Arm(name=codec, codec=codec, pools=pools)


def _show(arm: Arm, plan: DemoPlan, fleet: Fleet, geometry: Geometry) -> Finding:
    with progress(f"{arm.name}: start SGLang") as clock:
        client = fleet.client(arm)
        clock.note(f"ready, log in {fleet.launch.logs / arm.name}.log")
    with progress(f"{arm.name}: ask") as clock:
        first = _ask(client, plan, range(len(plan.prompts)), clock)
    with progress(f"{arm.name}: replay") as clock:
        replayed = _ask(client, plan, plan.replay_order, clock)
    found = _count(arm.name, first, replayed, client.metrics())
    found = replace(found, arguments=fleet.launch.arguments_of(arm))
    _check(found, bytes_per_token(geometry, arm.name))
    return found


def _ask(client: Client, plan: DemoPlan, order: Sequence[int], clock: Clock) -> list[Answer]:
    """Ask in the given order; the answers come back in the order of the prompts."""
    answers: dict[int, Answer] = {}
    for index in order:
        answers[index] = client.ask(plan.prompts[index], plan.new_tokens)
        restored = sum(answer.host_tokens for answer in answers.values())
        clock.note(f"{len(answers)} of {len(order)}, {restored:,} tokens from L2")
    return [answers[index] for index in sorted(answers)]


def _count(
    codec: str, first: Sequence[Answer], replayed: Sequence[Answer], counters: dict[str, float]
) -> Finding:
    def per_token(direction: str) -> float:
        tokens = counters.get(f"sglang:{direction}_tokens_total", 0.0)
        return counters[f"sglang:{direction}_bytes_total"] / tokens if tokens else 0.0

    restored = [
        (before, after) for before, after in zip(first, replayed, strict=True) if after.host_tokens
    ]
    cached = sum(answer.device_tokens + answer.host_tokens for answer in replayed)
    return Finding(
        codec=codec,
        backup_bytes_per_token=per_token("hicache_backup"),
        restore_bytes_per_token=per_token("load_back"),
        l2_tokens=int(counters["sglang:hicache_host_total_tokens"]),
        l2_held_tokens=int(counters["sglang:hicache_host_used_tokens"]),
        restored_tokens=int(counters.get("sglang:load_back_tokens_total", 0)),
        hit_rate=cached / sum(answer.prompt_tokens for answer in replayed),
        mean_ttft_s=mean(answer.ttft for answer in replayed),
        restored_answers=len(restored),
        changed_answers=sum(before.token_ids != after.token_ids for before, after in restored),
        answers=tuple(answer.text for answer in replayed),
    )


def _check(result: Finding, expected: int) -> None:
    if not result.restored_tokens:
        raise DemoFailed(f"{result.codec}: nothing was restored from L2")
    for direction, figure in (
        ("backup", result.backup_bytes_per_token),
        ("restore", result.restore_bytes_per_token),
    ):
        if figure != expected:
            raise DemoFailed(
                f"{result.codec}: {direction} measured {figure} bytes per token, "
                f"expected {expected}"
            )
