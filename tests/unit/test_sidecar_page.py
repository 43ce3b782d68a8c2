"""The status page in a real Chromium, beside engines that say what was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hiqcache.sidecar.address import Address
from tests.engine.chromium import Browser, chromium
from tests.unit.sidecar_cases import EVERYTHING, TEXTS, answer, fake_engine, sidecar

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as started:
        started.size(1200, 900)
        yield started
        assert started.console == []


@contextmanager
def page(browser: Browser, text: str) -> Iterator[str]:
    """The page beside an engine that says this, asked for twice; the text that it shows."""
    with fake_engine(answer(text)) as engine, sidecar([Address("int8", engine.url)]) as client:
        summary = f"{client.base_url}/api/v1/summary"
        browser.open(str(client.base_url))
        browser.wait("document.querySelector('[data-field=\"state\"]')?.textContent === 'up'")
        browser.wait(f"performance.getEntriesByName('{summary}').length > 2")
        yield browser.evaluate("document.body.innerText")
        # Or it would complain that the sidecar has gone.
        browser.open("about:blank")
        browser.wait("location.href === 'about:blank'")


def test_where_nothing_happened_there_is_no_highest(browser: Browser) -> None:
    with page(browser, TEXTS["traffic"]) as shown:
        assert "nothing yet" in shown
        assert "highest 1.0/s" not in shown
        assert "highest 9,076" in shown


def test_the_codec_the_fill_and_what_else_would_fit_come_first(browser: Browser) -> None:
    unencoded = "document.querySelector('[data-field=\"unencoded\"]').textContent"
    with page(browser, TEXTS["stack"]) as shown:
        assert "tokens as int8-compact. BF16 would hold 5,120 in the same memory" in shown
        assert "L2 tokens held (int8-compact)" in shown
        assert browser.evaluate(unencoded) == "BF16 would hold 5,120"


def test_pools_are_shown_where_there_are_several(browser: Browser) -> None:
    rows = "[...document.querySelectorAll('tbody tr')].map(row => row.innerText.split('\\t'))"
    hidden = "document.querySelector('[data-part=\"pools\"]').hidden"
    with page(browser, TEXTS["traffic"]):
        assert browser.evaluate(hidden)
    with page(browser, EVERYTHING):
        assert not browser.evaluate(hidden)
        assert browser.evaluate(rows) == [
            ["kv", "16,400", "15,360", "251.9 MB", "6,784", "5,680"],
            ["mamba, unencoded", "40", "100,000", "4.0 MB", "\u2013", "\u2013"],
        ]


def test_a_figure_that_is_missing_is_a_dash_and_a_sentence(browser: Browser) -> None:
    broken = 'sglang:cached_tokens_total{cache_source="host"} NaN\n'
    with page(browser, TEXTS["traffic"] + broken) as shown:
        assert "Figures that the engine gives and that are no numbers: hit_tokens." in shown
        assert "9,076 of 18,433" in shown
    broken = "sglang:hicache_host_total_tokens NaN\nhiqcache_engine_pool_info{ 1\n"
    with page(browser, TEXTS["traffic"] + broken) as shown:
        assert "the pool could not be read" in shown
        assert "no L2" not in shown and "no HiQCache" not in shown
