"""`/metrics` itself: every series by the stated rules, and the page of the docs about them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hiqcache.sidecar.collector import OWN, ReadingCollector
from hiqcache.sidecar.engine import Reading
from hiqcache.sidecar.failure import Failure, Reason
from hiqcache.sidecar.figures import Figures, read_figures
from tests.unit.sidecar_cases import EVERYTHING, TEXTS, Labels, recorded_figures, series

pytestmark = pytest.mark.filterwarnings("error")

DOCS = Path(__file__).parents[2] / "docs"
METRICS = [figure.metric for figure in Figures.declared() if figure.metric.name]
OWN_NAMES = {metric.name for metric in OWN}

# What no engine has before something has happened in it, or without an L2 or HiQCache.
NOT_RESTORED = {
    "hiqcache_l2_bytes_per_token_restore",
    "hiqcache_pool_restore_tokens_total",
}
# No recording is of a hybrid model, or of `exact`.
ELSEWHERE = {
    "hiqcache_companion_bytes",
    "hiqcache_companion_slots",
    "hiqcache_l2_states",
    "hiqcache_l2_states_max",
    "hiqcache_inexact_rows_total",
}
# What plugins did not tell that are older than the recording of a stack.
UNTOLD = ELSEWHERE | {
    "hiqcache_l2_bytes_per_token_unencoded",
    "hiqcache_l2_tokens_max_unencoded",
}
NO_L3 = {
    "hiqcache_l3_page_bytes",
    "hiqcache_l3_bad_pages_total",
    "hiqcache_l3_failed_writes_total",
}
NO_L3_AND_NO_VERIFY = NO_L3 | {"hiqcache_checksum_bytes", "hiqcache_mismatches_total"}
# All but "encoded", "l3" and "stack" are of a plugin that did not count these yet.
UNCOUNTED = (
    UNTOLD
    | NO_L3_AND_NO_VERIFY
    | {
        "hiqcache_encode_seconds_total",
        "hiqcache_decode_seconds_total",
        "hiqcache_nonfinite_heads_total",
        "hiqcache_memory_bytes",
        "hiqcache_memory_limit_bytes",
    }
)
ABSENT = {
    "fresh": NOT_RESTORED | UNCOUNTED,
    "before_first_hit": NOT_RESTORED | UNCOUNTED,
    "traffic": UNCOUNTED,
    "encoded": NO_L3_AND_NO_VERIFY | UNTOLD,
    "l3": UNTOLD,
    "stack": NO_L3 | ELSEWHERE,
    "after_restart": NOT_RESTORED | UNCOUNTED,
    "plain": UNCOUNTED
    | NOT_RESTORED
    | {
        "hiqcache_backup_records_total",
        "hiqcache_restore_records_total",
        "hiqcache_l2_bytes_per_token_configured",
        "hiqcache_l2_bytes_per_token_backup",
        "hiqcache_l2_tokens",
        "hiqcache_l2_tokens_max",
        "hiqcache_l2_bytes",
        "hiqcache_l2_bytes_max",
        "hiqcache_staging_bytes",
        "hiqcache_pool_tokens_max",
        "hiqcache_pool_bytes_per_token",
        "hiqcache_pool_bytes",
        "hiqcache_pool_backup_tokens_total",
    },
}


def reading(text: str | None, name: str | None = None) -> Reading:
    figures = None if text is None else recorded_figures(text)
    return reading_of(figures, name)


def reading_of(figures: Figures | None, name: str | None = None) -> Reading:
    return Reading(name, figures, None if figures else Failure.TIMEOUT, 0.25, None, None)


def exposed(*readings: Reading) -> str:
    text: bytes = generate_latest(ReadingCollector(readings, [], CollectorRegistry()))
    return text.decode()


def families(text: str) -> dict[str, str]:
    """Name as sampled -> type."""
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("name", TEXTS)
def test_everything_is_there_but_what_is_stated(name: str) -> None:
    described = {metric.name for metric in METRICS}
    assert set(families(exposed(reading(name)))) == (described | OWN_NAMES) - ABSENT[name]


@pytest.mark.parametrize("name", TEXTS)
def test_labelled_series_exist_from_the_start(name: str) -> None:
    found = series(exposed(reading(name)))
    for tier in ("device", "host", "storage"):
        assert ("hiqcache_hit_tokens_total", (("tier", tier),)) in found
    for reason in ("host_pressure", "write_through_unbacked_eviction"):
        assert ("hiqcache_dropped_tokens_total", (("reason", reason),)) in found
    for why in Reason:
        assert found["hiqcache_scrape_errors_total", (("reason", why.value),)] == 0
    for direction in ("backup", "restore"):
        buckets = f"hiqcache_{direction}_duration_seconds_bucket"
        assert (buckets, (("le", "+Inf"),)) in found


def test_the_figures_of_real_traffic() -> None:
    found = series(exposed(reading("traffic")))

    def value(name: str, *labels: tuple[str, str]) -> float:
        return found[f"hiqcache_{name}", labels]

    assert value("up") == 1
    assert value("scrape_duration_seconds") == 0.25
    assert value("l2_bytes_per_token_configured") == 15_360
    assert value("l2_bytes_per_token_backup") == 15_360
    assert value("l2_bytes_per_token_restore") == 15_360
    assert value("l2_tokens_max") == 18_433
    assert value("hit_tokens_total", ("tier", "host")) == 9046
    assert value("restore_tokens_total") == 9046
    assert value("restore_bytes_total") == 9046 * 15_360
    assert value("evicted_tokens_total") == 14_238
    assert value("ttft_seconds_count") == 17
    assert value("ttft_seconds_bucket", ("le", "2.0")) == 9
    labels: Labels = (
        ("codec", "int8"),
        ("layout", "layer_first"),
        ("page_size", "1"),
        ("transfer", "torch"),
    )
    assert value("pool_info", *labels) == 1


def test_a_plain_engine_says_so() -> None:
    found = series(exposed(reading("plain")))
    empty = (("codec", "none"), ("layout", ""), ("page_size", ""), ("transfer", ""))
    assert found["hiqcache_pool_info", empty] == 1


def test_a_down_engine_leaves_nothing_stale() -> None:
    found = series(exposed(reading(None)))
    assert found["hiqcache_up", ()] == 0
    assert {name for name, _ in found} == OWN_NAMES


def test_several_engines_have_a_label() -> None:
    found = series(exposed(reading(None, "bf16"), reading("traffic", "int8")))
    assert found["hiqcache_up", (("engine", "bf16"),)] == 0
    assert found["hiqcache_up", (("engine", "int8"),)] == 1
    for name, labels in found:
        unlabelled = name.startswith("hiqcache_scrape_")
        assert ("engine" in dict(labels)) is not unlabelled, name
        assert dict(labels).get("engine") != "bf16" or name in OWN_NAMES


def test_no_model_path_and_no_label_of_sglangs() -> None:
    text = exposed(reading("l3"))
    assert "smollm2" not in text
    assert "sglang" not in text
    assert "rank" not in re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def test_openmetrics_is_valid_too() -> None:
    reading = reading_of(read_figures(EVERYTHING))
    collector = ReadingCollector([reading], [], CollectorRegistry())
    text = generate_openmetrics(collector).decode()
    assert len(list(text_string_to_metric_families(text))) == len(METRICS) + len(OWN)


def test_promtool_finds_nothing() -> None:
    promtool = shutil.which("promtool")
    assert promtool, "the metrics are checked with promtool: apt-get install prometheus"
    for name in TEXTS:
        text = exposed(reading(name))
        done = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_documentation_is_written_from_the_figures(tmp_path: Path) -> None:
    out = tmp_path / "metrics.md"
    subprocess.run([sys.executable, DOCS / "generate_metrics.py", "--out", out], check=True)
    assert out.read_text("utf-8") == (DOCS / "metrics.md").read_text("utf-8"), "run `make metrics`"


def test_names_labels_and_units_are_those_declared() -> None:
    text = exposed(reading_of(read_figures(EVERYTHING)))
    declared = {metric.name: metric for metric in (*OWN, *METRICS)}
    assert len(declared) == len(OWN) + len(METRICS)
    types = {name: metric.kind.replace("info", "gauge") for name, metric in declared.items()}
    assert types == families(text)
    labels: dict[str, set[str]] = {name: set() for name in declared}
    for name, found in series(text):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        labels[base] |= {label for label, _ in found} - {"le"}
    for name, metric in declared.items():
        assert set(metric.labels) == labels[name], name
        for word in ("bytes", "seconds", "tokens"):
            if re.search(rf"_{word}(_total|_max)?$", name):
                assert metric.unit == word, name
