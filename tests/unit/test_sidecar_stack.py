"""Stacks of several pools, and the line that a person reads first."""

from __future__ import annotations

import pytest

from hiqcache.sidecar.engine import Reading
from hiqcache.sidecar.figures import Figures, read_figures
from hiqcache.sidecar.headline import headline
from hiqcache.sidecar.problems import find_problems
from tests.unit.sidecar_cases import EVERYTHING, changed, figures_of, recorded_figures

pytestmark = pytest.mark.filterwarnings("error")

KV, WINDOW, STATE = 208 * 4, 208 * 6, 100_000
"""Bytes of a slot of each pool."""


def stack(wrong: int = 0, drafts: bool = False) -> Figures:
    """100 KV tokens, 30 of a window and two states went to L2, with SGLang's bytes of all."""
    rank = 'tp_rank="0",pp_rank="0",dp_rank="0"'
    lines = [
        f'hiqcache_engine_pool_info{{pool="kv",codec="int8-compact",rows="BF16",{rank}}} 1',
        f'hiqcache_engine_bytes_per_token{{pool="kv",{rank}}} {KV}',
        f'hiqcache_engine_bytes_per_token{{pool="swa",{rank}}} {WINDOW}',
        f'hiqcache_engine_unencoded_bytes_per_token{{pool="kv",{rank}}} {KV * 2}',
        f'hiqcache_engine_pool_tokens{{pool="kv",{rank}}} 1001',
        f'hiqcache_engine_pool_tokens{{pool="swa",{rank}}} 501',
        f'hiqcache_engine_pool_bytes{{pool="kv",{rank}}} {1001 * KV}',
        f'hiqcache_engine_pool_bytes{{pool="swa",{rank}}} {501 * WINDOW}',
        f'hiqcache_engine_companion_bytes{{pool="mamba",{rank}}} {40 * STATE}',
        f'hiqcache_engine_companion_slots{{pool="mamba",{rank}}} 40',
        f"sglang:hicache_host_used_tokens{{{rank}}} 500",
        f"sglang:hicache_host_total_tokens{{{rank}}} 1001",
        f'sglang:hicache_backup_tokens_total{{pool="kv",{rank}}} 100',
        f'sglang:hicache_backup_tokens_total{{pool="swa",{rank}}} 30',
        f'sglang:hicache_backup_tokens_total{{pool="mamba",{rank}}} 2',
        'sglang:cached_tokens_total{cache_source="host"} 25',
        "sglang:prompt_tokens_total 100",
    ]
    copied = 100 * KV + 30 * WINDOW + 2 * STATE + wrong
    if drafts:
        lines.append(f'hiqcache_engine_bytes_per_token{{pool="draft",{rank}}} 208')
        copied += 100 * 208
    lines.append(f"sglang:hicache_backup_bytes_total{{{rank}}} {copied}")
    return figures_of("\n".join(lines))


@pytest.mark.parametrize("drafts", [False, True])
def test_bytes_per_token_are_exact_beside_other_pools(drafts: bool) -> None:
    found = stack(drafts=drafts)
    assert found.backup_bytes_per_token == found.bytes_per_token == KV
    assert [problem.code for problem in problems(found)] == []
    assert [problem.code for problem in problems(stack(wrong=1, drafts=drafts))] == [
        "bytes_per_token_differ"
    ]


def problems(figures: Figures) -> list[object]:
    return list(find_problems(Reading(None, figures, None, 0.1, None, None)))


def test_a_pool_whose_size_is_unknown_leaves_nothing_to_compare() -> None:
    found = figures_of(
        'hiqcache_engine_bytes_per_token{pool="kv"} 10\n'
        'sglang:hicache_backup_tokens_total{pool="kv"} 3\n'
        'sglang:hicache_backup_tokens_total{pool="some_new_pool"} 3\n'
        "sglang:hicache_backup_bytes_total 100\n"
    )
    assert found.pool_backup_tokens == {"kv": 3, "other": 3}
    assert found.backup_bytes_per_token is None


def test_every_figure_of_kv_is_of_kv_and_the_pools_are_beside_it() -> None:
    found = stack()
    assert found.l2_bytes_max == 1001 * KV
    assert found.pool_bytes == {"kv": 1001 * KV, "swa": 501 * WINDOW}
    assert found.pool_tokens_max == {"kv": 1001, "swa": 501}
    assert found.companion_bytes == {"mamba": 40 * STATE}
    assert found.l2_tokens_max_unencoded == 500


def test_a_real_stack_is_read_by_pool() -> None:
    """Mellum's small sibling: two layers of full attention, three of windows, 2 heads of 32."""
    found = recorded_figures("stack")
    record = 2 * (2 * 32 + 2 * 2 + 12)
    assert found.pool_bytes_per_token == {"kv": 2 * record, "swa": 3 * record}
    assert set(found.pool_restore_tokens) == {"kv", "swa"}
    assert found.backup_bytes_per_token == found.restore_bytes_per_token == 2 * record
    assert problems(found) == []
    assert "BF16 would hold" in headline(found) and "swa (" in headline(found)


HEADLINES = {
    "a stack": (
        stack(),
        "L2 is 50% full: 500 of 1,001 tokens as int8-compact. BF16 would hold 500 in the same "
        "memory. Encoded too: swa (501 tokens). Unencoded, as SGLang has it: mamba (40 slots). Of "
        "100 prompt tokens 25% came back from it.",
    ),
    "one pool": (
        recorded_figures("traffic"),
        "L2 is 49% full: 9,076 of 18,433 tokens as int8. Of 18,116 prompt tokens 50% came back "
        "from it.",
    ),
    "everything": (
        read_figures(EVERYTHING),
        "L2 is 14% full: 2,272 of 16,400 tokens as int8. Unencoded it would hold 10,933 in the "
        "same memory. Unencoded, as SGLang has it: mamba (40 slots). Of 12,517 prompt tokens 27% "
        "came back from it.",
    ),
    "no L2": (recorded_figures("plain"), "No L2."),
    "an L2 that cannot be read": (
        figures_of("sglang:hicache_host_total_tokens NaN"),
        "What L2 can hold could not be read.",
    ),
    "no HiQCache": (
        changed(figures_of("sglang:hicache_host_total_tokens 100"), l2_tokens=30.0),
        "L2 is 30% full: 30 of 100 tokens.",
    ),
    "down": (None, "No figures: the engine is down."),
}


@pytest.mark.parametrize(("figures", "line"), HEADLINES.values(), ids=HEADLINES.keys())
def test_the_line_that_a_person_reads_first(figures: Figures | None, line: str) -> None:
    assert headline(figures) == line
