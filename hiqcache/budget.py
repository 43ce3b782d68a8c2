"""How `--hicache-size` is shared among the pools of a stack: by bytes as stored, by one rule.

SGLang shares it in proportion to the device's pools. That leaves an encoded pool beside an
unencoded one with the wrong part, and a small pool beside a large one with next to nothing.
The engine, `hiqcache capacity` and doctor share it here:

- windows keep SGLang's ratio of tokens: `swa` tokens over `kv` tokens as on the device;
- state follows the tokens: one state for every `HIQCACHE_TOKENS_PER_STATE` tokens of `kv`;
- `HIQCACHE_SPLIT` overrides both with the part of the bytes that each pool gets.

What has a slot for each slot of a pool (a separate draft's layers, index keys) is paid for by
that pool's part. Tokens and states come out as SGLang computes them, in its floating point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hiqcache.errors import UsageError

KV, SWA, STATE = "kv", "swa", "state"
POOLS = (KV, SWA, STATE)

TOKENS_PER_STATE = 2048
"""A prefix whose state is gone is not restored, however much of its KV is there. Of servers that
people report, one restored none of 8 long requests at 4,743 tokens per state and all at 3,650
(sgl-project/sglang#39436); turns of chats and agents leave a state for every few hundred to few
thousand tokens."""

SUM_TOLERANCE = 1e-6
LEAST_USE = 0.5
"""A pool of which the others can use less than this part is called dead memory."""


@dataclass(frozen=True)
class Pool:
    """A pool that gets a part of the budget.

    Qwen3-Next's attention layers under `int8-compact`, one rank: 12 layers, 2 heads of 256:
    `Pool("kv", 12 * 2 * 528, device_slots=400_000)`, 12,672 bytes per token.

    Parameters
    ----------
    name
        `kv` (full attention, or all of it), `swa` (windows) or `state` (recurrent state).
    slot_bytes
        One slot as stored: a token's records in all layers, or one state.
    rider_bytes
        What one slot takes besides, in pools that have a slot for each of this one's.
    device_slots
        Slots of the device's pool, which say how windows stand to full attention.
    """

    name: str
    slot_bytes: int
    rider_bytes: int = 0
    device_slots: int = 1

    @property
    def bytes(self) -> int:
        """All that one slot takes."""
        return self.slot_bytes + self.rider_bytes


def shares(
    gigabytes: float,
    pools: Sequence[Pool],
    *,
    tokens_per_state: int = TOKENS_PER_STATE,
    split: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Decimal gigabytes of each pool itself, riders taken off, by name.

    Raises
    ------
    UsageError
        `split` names other pools than the stack has.
    """
    parts = _given(split, pools) if split else _by_rule(pools, tokens_per_state)
    return {
        pool.name: gigabytes * parts[pool.name] * pool.slot_bytes / pool.bytes for pool in pools
    }


def slots(gigabytes: float, slot_bytes: int, page_size: int = 1) -> int:
    """Slots that SGLang makes of a share: whole pages, and one page of padding."""
    return (int(gigabytes * 1e9 // slot_bytes) // page_size + 1) * page_size


def parse_split(text: str) -> dict[str, float] | None:
    """Read `kv=0.8,state=0.2`; None unless it names pools, each once, in parts of a sum of 1."""
    parts: dict[str, float] = {}
    for item in text.split(","):
        name, _, number = (word.strip() for word in item.partition("="))
        try:
            part = float(number)
        except ValueError:
            return None
        if name not in POOLS or name in parts or not 0 < part < 1:
            return None
        parts[name] = part
    return parts if abs(sum(parts.values()) - 1) <= SUM_TOLERANCE else None


def write_split(parts: Mapping[str, float]) -> str:
    """Parts as `HIQCACHE_SPLIT` takes them, with four decimals that add up to 1."""
    rounded = {name: max(0.0001, round(part, 4)) for name, part in parts.items()}
    first = max(rounded, key=rounded.__getitem__)
    rounded[first] = round(1 - sum(part for name, part in rounded.items() if name != first), 4)
    return ",".join(f"{name}={part:g}" for name, part in rounded.items())


def dead_memory(
    pools: Sequence[Pool], held: Mapping[str, int], *, tokens_per_state: int = TOKENS_PER_STATE
) -> str | None:
    """Say which pool is so small that another is mostly dead memory, and the split that is not.

    Parameters
    ----------
    held
        Slots that each pool of `pools` got.

    Returns
    -------
    str | None
        One sentence; None where each pool can use at least half of the others.
    """
    wanted = _slots_by_rule(pools, tokens_per_state)
    # How many units of the rule each pool has room for: the least one bounds the others' use.
    units = {pool.name: held[pool.name] / wanted[pool.name] for pool in pools}
    small, large = min(units, key=units.__getitem__), max(units, key=units.__getitem__)
    if units[small] >= LEAST_USE * units[large]:
        return None
    used = units[small] / units[large]
    part = f"about {used:.0%}" if used >= 0.01 else "under 1%"
    return (
        f"{held[small]:,} {_called(small)} are too few for {held[large]:,} {_called(large)}, of "
        f"which {part} will be used; "
        f"HIQCACHE_SPLIT={write_split(_by_rule(pools, tokens_per_state))} shares the memory evenly"
    )


def _called(name: str) -> str:
    return {KV: "tokens", SWA: "tokens of windows", STATE: "states"}[name]


def _slots_by_rule(pools: Sequence[Pool], tokens_per_state: int) -> dict[str, float]:
    """Slots of each pool for one token of `kv`."""
    device = {pool.name: pool.device_slots for pool in pools}
    rule = {KV: 1.0, STATE: 1 / tokens_per_state}
    return {
        name: rule[name] if name in rule else device[name] / device.get(KV, device[name])
        for name in device
    }


def _by_rule(pools: Sequence[Pool], tokens_per_state: int) -> dict[str, float]:
    wanted = _slots_by_rule(pools, tokens_per_state)
    weights = {pool.name: wanted[pool.name] * pool.bytes for pool in pools}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _given(split: Mapping[str, float], pools: Sequence[Pool]) -> Mapping[str, float]:
    names = [pool.name for pool in pools]
    if set(split) != set(names):
        raise UsageError(
            f"HIQCACHE_SPLIT names the pools {', '.join(split)}, but this model has "
            f"{', '.join(names)}; name each of them, or unset it"
        )
    return split
