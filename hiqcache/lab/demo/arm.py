"""One arm of the demo: a server with one codec, asked everything twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from hiqcache.capacity import bytes_per_token
from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.lab.demo.plan import Plan
from hiqcache.lab.demo.stage import Stage, stage
from hiqcache.lab.serving.client import Answer, Client
from hiqcache.lab.serving.server import Server

READY_SECONDS = 900


class DemoFailed(HiQCacheError):
    """The demo ran and did not show what it must."""


@dataclass(frozen=True)
class ArmResult:
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
    arguments: tuple[str, ...]


def run_arm(
    codec: str,
    model: str,
    geometry: Geometry,
    plan: Plan,
    out: Path,
    further: Sequence[str],
    environment: Mapping[str, str],
) -> ArmResult:
    """Start a server with the codec, ask every prompt, ask every prompt again, read counters.

    Parameters
    ----------
    further, environment
        SGLang's arguments and variables beyond those of the pool and the codec.

    Raises
    ------
    HiQCacheError
        The server failed, nothing was restored, or the bytes per token are not the record's.
    """
    arguments = [
        *("--max-total-tokens", str(plan.l1_tokens)),
        "--enable-hierarchical-cache",
        *("--hicache-ratio", repr(plan.ratio(geometry, codec))),
        *further,
    ]
    with Server(
        model, arguments, {**environment, "HIQCACHE_CODEC": codec}, out / f"{codec}.log"
    ) as server:
        with stage(f"{codec}: start SGLang") as current:
            server.wait_ready(READY_SECONDS)
            current.note(f"ready, log in {server.log}")
        with stage(f"{codec}: ask") as current:
            first = _ask(server.client, plan, range(len(plan.prompts)), current)
        with stage(f"{codec}: replay") as current:
            replayed = _ask(server.client, plan, plan.replay_order, current)
        counters = server.client.metrics()
    result = _result(codec, first, replayed, counters, tuple(arguments))
    _check(result, bytes_per_token(geometry, codec))
    return result


def _ask(client: Client, plan: Plan, order: Sequence[int], current: Stage) -> list[Answer]:
    """Ask in the given order; the answers come back in the order of the prompts."""
    answers: dict[int, Answer] = {}
    for index in order:
        answers[index] = client.ask(plan.prompts[index], plan.new_tokens)
        restored = sum(answer.host_tokens for answer in answers.values())
        current.note(f"{len(answers)} of {len(order)}, {restored:,} tokens from L2")
    return [answers[index] for index in sorted(answers)]


def _result(
    codec: str,
    first: Sequence[Answer],
    replayed: Sequence[Answer],
    counters: dict[str, float],
    arguments: tuple[str, ...],
) -> ArmResult:
    def per_token(direction: str) -> float:
        tokens = counters.get(f"sglang:{direction}_tokens_total", 0.0)
        return counters[f"sglang:{direction}_bytes_total"] / tokens if tokens else 0.0

    restored = [
        (before, after) for before, after in zip(first, replayed, strict=True) if after.host_tokens
    ]
    cached = sum(answer.device_tokens + answer.host_tokens for answer in replayed)
    return ArmResult(
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
        arguments=arguments,
    )


def _check(result: ArmResult, expected: int) -> None:
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
