"""Reads one engine's `/metrics`: within a deadline, within a size, and never twice at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import httpx

from hiqcache.sidecar.address import Address
from hiqcache.sidecar.figures import Figures, read_figures
from hiqcache.sidecar.ranks import Samples
from hiqcache.sidecar.samples import GarbledText, parse_samples

LARGEST = 8 * 2**20
"""Bytes that an answer may have; SGLang's is 0.1 MB for one rank with all its histograms."""

KEEP_ALIVE_SECONDS = 4.0
"""Below the 5 s after which SGLang's server closes an idle connection, which would be a race."""

log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a read failed; the label `reason` of `hiqcache_scrape_errors_total`."""

    TIMEOUT = "timeout"
    CONNECT = "connect"
    STATUS = "status"
    PARSE = "parse"


@dataclass(frozen=True)
class Reading:
    """What one read gave: figures, or the reason that there are none.

    Parameters
    ----------
    name
        The engine's name, or None.
    seconds
        From asking to having the figures, or to giving up.
    down_since
        The first failed read since the last answer, if this read failed.
    last_answer
        The last read that gave figures, if any did since the sidecar started.
    """

    name: str | None
    figures: Figures | None
    reason: Reason | None
    seconds: float
    down_since: datetime | None
    last_answer: datetime | None


class ReadFailed(Exception):
    """Carries the reason out of a read."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Engine:
    """One engine. Those who ask while a read is under way share that read's outcome.

    Parameters
    ----------
    address
        Where it is.
    timeout
        Seconds for the whole read, however slowly the bytes drip in.
    client
        Shared by all engines of the sidecar.
    """

    def __init__(self, address: Address, timeout: float, client: httpx.AsyncClient) -> None:
        self.name = address.name
        self.errors = dict.fromkeys(Reason, 0)
        self._url = f"{address.url}/metrics"
        self._timeout = timeout
        self._client = client
        self._under_way: asyncio.Task[Reading] | None = None
        self._down_since: datetime | None = None
        self._last_answer: datetime | None = None

    async def read(self) -> Reading:
        """Ask the engine, or wait for the answer that somebody else has asked for."""
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._read())
        # Whoever gives up waiting must not take the answer away from the others.
        return await asyncio.shield(self._under_way)

    async def _read(self) -> Reading:
        begin = time.monotonic()
        figures, reason = None, None
        try:
            figures = await self._figures()
        except ReadFailed as failure:
            reason = failure.reason
        self._note(reason)
        seconds = time.monotonic() - begin
        return Reading(self.name, figures, reason, seconds, self._down_since, self._last_answer)

    async def _figures(self) -> Figures:
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._text()
            return read_figures(Samples(parse_samples(text)))
        except TimeoutError:
            raise ReadFailed(Reason.TIMEOUT) from None
        except httpx.HTTPError:
            raise ReadFailed(Reason.CONNECT) from None
        except (GarbledText, UnicodeDecodeError):
            raise ReadFailed(Reason.PARSE) from None

    async def _text(self) -> str:
        body = bytearray()
        async with self._client.stream("GET", self._url) as response:
            if response.status_code != httpx.codes.OK:
                raise ReadFailed(Reason.STATUS)
            # Compression was not offered; unpacking it could turn a kilobyte into a gigabyte.
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ReadFailed(Reason.PARSE)
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > LARGEST:
                    raise ReadFailed(Reason.PARSE)
        return body.decode()

    def _note(self, reason: Reason | None) -> None:
        """Count, and log once when the engine goes and once when it comes."""
        now = datetime.now(UTC)
        label = self.name or "the engine"
        if reason is None:
            if self._down_since is not None or self._last_answer is None:
                log.info("%s answers", label)
            self._down_since, self._last_answer = None, now
            return
        self.errors[reason] += 1
        if self._down_since is None:
            log.warning("%s does not answer: %s", label, reason)
            self._down_since = now


def make_client() -> httpx.AsyncClient:
    """One pool of connections; proxies of the environment and redirects are not followed."""
    return httpx.AsyncClient(
        # A limit for each operation would never end an answer that drips; Engine has a deadline.
        timeout=None,
        limits=httpx.Limits(max_connections=20, keepalive_expiry=KEEP_ALIVE_SECONDS),
        headers={"accept": "text/plain", "accept-encoding": "identity"},
        follow_redirects=False,
        trust_env=False,
    )


async def read_all(engines: Sequence[Engine]) -> list[Reading]:
    """Read all engines at the same time, in their order."""
    return list(await asyncio.gather(*(engine.read() for engine in engines)))
