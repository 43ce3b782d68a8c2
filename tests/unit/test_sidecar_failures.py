"""Engines that are gone, slow, wrong or new: on real sockets, and without a word in the log."""

from __future__ import annotations

import asyncio
import gc
import gzip
import itertools
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from hiqcache.lab.serving.server import free_port
from hiqcache.sidecar.address import Address
from hiqcache.sidecar.app import create_app
from hiqcache.sidecar.engine import LARGEST
from hiqcache.sidecar.failure import Failure
from tests.unit.sidecar_cases import (
    TEXTS,
    Behaviour,
    answer,
    cut_off,
    drip,
    endless,
    errors,
    fake_engine,
    hang_up,
    held,
    late,
    not_http,
    scrape,
    sidecar,
)

pytestmark = pytest.mark.filterwarnings("error")

GOOD = answer(TEXTS["traffic"])
NONE = {"timeout": 0.0, "connect": 0.0, "status": 0.0, "parse": 0.0}
UP = ("hiqcache_up", ())
RESTORED = ("hiqcache_restore_tokens_total", ())

CASES: dict[str, tuple[Failure, Behaviour]] = {
    "slow": (Failure.TIMEOUT, held(GOOD)),
    "a byte now and then": (Failure.TIMEOUT, drip),
    "hangs up": (Failure.CONNECT, hang_up),
    "hangs up in the middle": (Failure.CONNECT, cut_off),
    "not HTTP": (Failure.CONNECT, not_http),
    "500": (Failure.STATUS, answer("Internal Server Error", 500)),
    "503 while it starts": (Failure.STARTING, answer("", 503)),
    "404 without --enable-metrics": (Failure.NO_METRICS, answer("Not Found", 404)),
    "401": (Failure.FORBIDDEN, answer("Unauthorized", 401)),
    "a redirect": (Failure.ELSEWHERE, answer("", 302, location="http://127.0.0.1:9/metrics")),
    "empty": (Failure.EMPTY, answer("\n")),
    "HTML": (Failure.NOT_SGLANG, answer("<html>It works!</html>")),
    "JSON": (Failure.NOT_SGLANG, answer('{"sglang:prompt_tokens_total": 3}')),
    "UTF-16": (Failure.NOT_SGLANG, answer(TEXTS["traffic"].encode("utf-16"))),
    "cut short by itself": (Failure.CUT_SHORT, answer(TEXTS["traffic"].rpartition("} ")[0])),
    "endless": (Failure.TOO_LARGE, endless),
    "too large": (Failure.TOO_LARGE, answer(TEXTS["traffic"] + "#" * LARGEST)),
    "compressed unasked": (
        Failure.COMPRESSED,
        answer(gzip.compress(b"0" * 10**6), content_encoding="gzip"),
    ),
}


@pytest.fixture(autouse=True)
def quiet_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No exception and no error in any log."""
    caplog.set_level(logging.WARNING)
    yield
    for record in caplog.records:
        assert record.exc_info is None and record.levelno < logging.ERROR, record


@pytest.mark.parametrize(("failure", "behave"), CASES.values(), ids=CASES.keys())
def test_a_bad_answer_is_a_down_engine_for_as_long_as_it_lasts(
    failure: Failure, behave: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    reason = failure.reason
    with fake_engine(GOOD) as engine, sidecar([Address(None, engine.url)]) as client:
        assert scrape(client)[UP] == 1
        engine.behave = behave
        found = scrape(client)
        assert found[UP] == 0
        assert RESTORED not in found
        assert errors(found) == {**NONE, reason: 1}
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        (shown,) = client.get("/api/v1/summary").json()["engines"]
        assert (shown["up"], shown["reason"], shown["figures"]) == (False, reason, None)
        assert shown["last_answer"] < shown["down_since"]
        assert shown["problems"][0]["text"].endswith(failure.sentence)
        engine.behave = GOOD
        found = scrape(client)
        assert (found[UP], found[RESTORED]) == (1, 9046)
        assert errors(found) == {**NONE, reason: 3}
        assert client.get("/readyz").status_code == 200
    said = [record.message for record in caplog.records]
    assert said == [f"the engine: no figures ({reason}): {failure.sentence}"]


def test_an_engine_that_was_never_there() -> None:
    with sidecar([Address("int8", f"http://127.0.0.1:{free_port()}")]) as client:
        found = scrape(client)
        assert found["hiqcache_up", (("engine", "int8"),)] == 0
        assert errors(found) == {**NONE, "connect": 1}
        (shown,) = client.get("/api/v1/summary").json()["engines"]
        assert shown["last_answer"] is None
        assert "Engine down" in shown["problems"][0]["text"]


def test_a_host_that_does_not_exist() -> None:
    with sidecar([Address(None, "http://engine.invalid:30000")], 5) as client:
        assert errors(scrape(client))["connect"] == 1


def test_a_killed_and_restarted_engine_starts_again() -> None:
    with fake_engine(GOOD) as engine:
        port = engine.server_port
        with sidecar([Address(None, engine.url)]) as client:
            assert scrape(client)[RESTORED] == 9046
            engine.shutdown()
            engine.server_close()
            engine.behave = hang_up
            down = scrape(client)
            assert down[UP] == 0
            assert [name for name, _ in down if "restore" in name] == []
            with fake_engine(answer(TEXTS["after_restart"]), port):
                again = scrape(client)
            assert again[UP] == 1
            assert again[RESTORED] == 0
            assert 0 < again["hiqcache_prompt_tokens_total", ()] < 18_116


def test_one_engine_down_leaves_the_other_alone() -> None:
    with fake_engine(GOOD) as good, fake_engine(held(GOOD)) as slow:
        addresses = [Address("bf16", slow.url), Address("int8", good.url)]
        with sidecar(addresses) as client:
            found = scrape(client)
            ready = client.get("/readyz")
    assert found["hiqcache_up", (("engine", "bf16"),)] == 0
    assert found["hiqcache_restore_tokens_total", (("engine", "int8"),)] == 9046
    assert (ready.status_code, ready.json()["engines"]) == (503, {"bf16": False, "int8": True})


def test_a_slow_engine_keeps_nobody_else_waiting() -> None:
    with (
        fake_engine(held(GOOD)) as engine,
        sidecar([Address(None, engine.url)], 60) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        scraped = pool.submit(scrape, client)
        assert client.get("/healthz").status_code == 200
        assert client.get("/").status_code == 200
        assert not scraped.done()
        engine.released.set()
        assert scraped.result()[UP] == 1


def test_scrapes_at_the_same_time_share_one_read() -> None:
    with fake_engine(late(GOOD, 0.5)) as engine, sidecar([Address(None, engine.url)], 5) as client:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: scrape(client), range(8)))
        assert [one[UP] for one in found] == [1] * 8
        assert len(engine.asked) <= 2
        scrape(client)
        scrape(client)
        assert len(engine.asked) <= 4
        assert set(engine.asked) == {"/metrics"}


def test_a_client_that_gives_up_takes_nothing_from_the_others() -> None:
    with (
        fake_engine(held(GOOD)) as engine,
        sidecar([Address(None, engine.url)], 60) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        patient = pool.submit(scrape, client)
        with pytest.raises(httpx.ReadTimeout):
            client.get("/metrics", timeout=0.1)
        engine.released.set()
        assert patient.result()[UP] == 1


SCRAPES = 2_000
MOST_GROWTH = 4 * 2**20


async def cheap_engine() -> asyncio.Server:
    """In the sidecar's own loop, because threads would take the time of the test."""
    short = "\n".join(
        line
        for line in TEXTS["traffic"].splitlines()
        if line.startswith(("hiqcache_", "sglang:hicache", "sglang:load_back", "sglang:prompt"))
    )
    head = "HTTP/1.1 {} X\r\ncontent-length: {}\r\n\r\n{}"
    good = head.format(200, len(short) + 1, f"{short}\n").encode()
    answers = itertools.cycle(
        [good] * 6
        + [head.format(500, 3, "bad").encode(), head.format(200, 7, "garbage").encode(), b"", b"x"]
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            current = next(answers)
            writer.write(current)
            await writer.drain()
            if not current.startswith(b"HTTP"):
                break
        writer.close()

    async def quietly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    return await asyncio.start_server(quietly, "127.0.0.1", 0)


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def scrape_often() -> tuple[int, int]:
    async with await cheap_engine() as engine:
        port = engine.sockets[0].getsockname()[1]
        app = create_app([Address(None, f"http://127.0.0.1:{port}")], 3, CollectorRegistry())
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client,
        ):
            warm, ups = 0, 0
            for count in range(SCRAPES):
                if count == SCRAPES // 10:
                    warm = resident_bytes()
                response = await client.get("/metrics")
                assert response.status_code == 200
                ups += "hiqcache_up 1.0" in response.text
            return ups, resident_bytes() - warm


def test_memory_is_flat_over_many_scrapes() -> None:
    ups, growth = asyncio.run(scrape_often())
    assert ups == SCRAPES * 6 / 10
    assert growth < MOST_GROWTH
