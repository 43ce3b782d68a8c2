"""What the sidecar makes of the text of a real engine, and of texts that no engine writes."""

from __future__ import annotations

import math
import warnings

import pytest

from hiqcache.sidecar.figures import BACKUP_BOUNDS, RESTORE_BOUNDS, TTFT_BOUNDS, read_figures
from hiqcache.sidecar.source import Histogram
from tests.unit.sidecar_cases import EVERYTHING, TEXTS, figures_of, recorded_figures

pytestmark = pytest.mark.filterwarnings("error")

INT8_BYTES = 15_360
"""30 layers x (256 + 256) bytes: SmolLM2-135M under `int8`."""


def test_before_the_first_hit_backups_are_measured_and_restores_are_not() -> None:
    figures = recorded_figures("before_first_hit")
    assert figures.hit_tokens == {"device": 1, "host": 0, "storage": 0}
    assert figures.bytes_per_token == figures.backup_bytes_per_token == INT8_BYTES
    assert figures.restore_tokens == 0
    assert figures.restore_bytes_per_token is None


def test_the_codecs_own_counts() -> None:
    figures = recorded_figures("encoded")
    assert figures.backup_records == figures.backup_tokens * 30 * 2 > 0
    assert figures.restore_records == figures.restore_tokens * 30 * 2 > 0
    assert figures.encode_seconds > 0 and figures.decode_seconds > 0
    assert figures.nonfinite_heads == 0
    without = recorded_figures("plain")
    assert without.backup_records is without.encode_seconds is without.nonfinite_heads is None


def test_in_traffic_every_tier_counts() -> None:
    figures = recorded_figures("traffic")
    assert figures.pool == {
        "codec": "int8",
        "transfer": "torch",
        "layout": "layer_first",
        "page_size": "1",
    }
    assert figures.l1_tokens_max == 4096
    assert (figures.l2_tokens, figures.l2_tokens_max) == (9076, 18_433)
    assert figures.l2_bytes == 9076 * INT8_BYTES
    assert figures.l2_bytes_max == 18_433 * INT8_BYTES
    assert figures.hit_tokens == {"device": 2, "host": 9046, "storage": 0}
    assert figures.prompt_tokens == 18_116
    assert figures.hit_rate == pytest.approx(9048 / 18_116)
    assert figures.restore_tokens == 9046
    assert figures.restore_bytes_per_token == INT8_BYTES
    # Streaming or not is a label of SGLang's: 16 requests of the test and one of the warm-up.
    assert figures.ttft.count == 17
    assert figures.generated_tokens == 40


def test_after_a_restart_counters_are_the_new_engines() -> None:
    before, after = recorded_figures("traffic"), recorded_figures("after_restart")
    assert 0 < after.prompt_tokens < before.prompt_tokens
    assert 0 < after.backup_tokens < before.backup_tokens
    assert after.restore_tokens == 0


def test_a_plain_engine_has_neither_l2_nor_hiqcache() -> None:
    figures = recorded_figures("plain")
    assert not figures.encoded
    assert figures.bytes_per_token is figures.l2_tokens_max is figures.l2_bytes is None
    assert figures.staging_bytes is figures.l2_bytes_max is None
    assert figures.hit_tokens["device"] > 1000
    assert figures.backup_tokens == figures.restore_tokens == 0


def test_a_cpu_times_no_copy() -> None:
    figures = recorded_figures("traffic")
    assert figures.restore_tokens > 0
    assert figures.restore_seconds.count == 0


def test_an_engine_without_hiqcaches_own_metrics_is_measured() -> None:
    text = "\n".join(line for line in TEXTS["traffic"].splitlines() if "hiqcache" not in line)
    figures = read_figures(f"{text}\n")
    assert figures.pool["codec"] == "none"
    assert figures.bytes_per_token is figures.staging_bytes is None
    assert figures.backup_bytes_per_token == INT8_BYTES
    assert figures.l2_bytes_max == 18_433 * INT8_BYTES


def test_one_rank_speaks_for_all() -> None:
    text = "".join(
        f'sglang:hicache_backup_tokens_total{{tp_rank="{rank}",pool="kv"}} {rank + 100}\n'
        f'sglang:hicache_backup_bytes_total{{tp_rank="{rank}"}} {(rank + 100) * 10}\n'
        f'hiqcache_engine_pool_bytes{{tp_rank="{rank}"}} 5000\n'
        for rank in (10, 2, 3)
    )
    figures = figures_of(text)
    assert (figures.backup_tokens, figures.backup_bytes) == (102, 1020)
    assert figures.kv_bytes == figures.l2_bytes_max == 5000


def test_what_is_not_a_rank_is_summed() -> None:
    text = "".join(
        f'sglang:prompt_tokens_total{{is_streaming="{streaming}",priority="{priority}"}} 10\n'
        f'sglang:num_running_reqs{{dp_rank="{priority}",tp_rank="{streaming}"}} 1\n'
        for streaming in ("0", "1")
        for priority in ("0", "1")
    )
    figures = figures_of(text)
    assert figures.prompt_tokens == 40
    assert figures.running_requests == 2


def test_bytes_per_token_is_never_a_sum() -> None:
    text = "".join(f'hiqcache_engine_bytes_per_token{{dp_rank="{r}"}} 7\n' for r in range(3))
    assert figures_of(text).bytes_per_token == 7


def test_only_the_kv_pool_counts() -> None:
    name = "sglang:hicache_backup_tokens_total"
    figures = figures_of(f'{name}{{pool="kv"}} 3\n{name}{{pool="mamba"}} 4\n')
    assert figures.backup_tokens == 3


def test_hits_that_sglang_cannot_split_are_l1s() -> None:
    name = "sglang:cached_tokens_total"
    text = f'{name}{{cache_source="total"}} 5\n{name}{{cache_source="device"}} 2\n'
    assert figures_of(text).hit_tokens["device"] == 7


def test_histograms_keep_their_buckets() -> None:
    name = "sglang:load_back_duration_seconds"
    text = "".join(
        f'{name}_bucket{{tp_rank="{rank}",le="{bound}"}} {count}\n'
        for rank in (0, 1)
        for bound, count in (("0.001", 1), ("0.5", 3), ("+Inf", 4))
    )
    text += f'{name}_sum{{tp_rank="0"}} 2.5\n{name}_sum{{tp_rank="1"}} 9\n'
    figures = figures_of(text)
    assert figures.restore_seconds == Histogram(((0.001, 1), (0.5, 3), (math.inf, 4)), 2.5)
    assert figures.restore_operations == 4


def test_the_engines_own_count_of_restores_comes_first() -> None:
    figures = figures_of('hiqcache_engine_restore_operations_total{tp_rank="0"} 9\n')
    assert figures.restore_operations == 9


def test_label_values_that_are_not_known_are_not_passed_on() -> None:
    figures = figures_of(
        'hiqcache_engine_pool_info{codec="x1",transfer="x2",layout="x3",page_size="x4"} 1\n'
        'sglang:hicache_dropped_tokens_total{reason="x5"} 3\n'
    )
    assert set(figures.pool.values()) == {"other"}
    assert figures.dropped_tokens == {
        "host_pressure": 0,
        "write_through_unbacked_eviction": 0,
        "other": 3,
    }


def test_a_line_that_is_not_known_may_be_anything() -> None:
    figures = figures_of("sglang:fwd_occupancy{x} NaN\nother{{{ 1\n# HELP\n\x00")
    assert figures.prompt_tokens == 0


def test_a_longer_name_is_another_metric() -> None:
    assert figures_of("sglang:prompt_tokens_total_x 3\n").prompt_tokens == 0


def test_the_zeros_have_sglangs_own_bounds() -> None:
    ttft = recorded_figures("traffic").ttft
    assert tuple(bound for bound, _ in ttft.buckets) == (*TTFT_BOUNDS, math.inf)
    fresh = figures_of("")
    for histogram, bounds in (
        (fresh.ttft, TTFT_BOUNDS),
        (fresh.backup_seconds, BACKUP_BOUNDS),
        (fresh.restore_seconds, RESTORE_BOUNDS),
    ):
        assert histogram.buckets == (*((bound, 0) for bound in bounds), (math.inf, 0))


def test_known_layouts_and_rows_are_the_plugins() -> None:
    with warnings.catch_warnings():
        # What SGLang's modules say when they are imported without a GPU.
        warnings.simplefilter("ignore")
        from hiqcache.engine.options import HOST_LAYOUTS
    from hiqcache.codec.row import ROW_TYPES
    from hiqcache.sidecar.samples import LAYOUTS, ROWS

    assert sorted(LAYOUTS) == sorted(HOST_LAYOUTS)
    assert {kind.label for kind in ROW_TYPES.values()} <= set(ROWS)


def test_no_figure_of_a_recording_is_forgotten() -> None:
    figures = read_figures(EVERYTHING)
    assert [name for name, value in figures.values.items() if value is None] == []
