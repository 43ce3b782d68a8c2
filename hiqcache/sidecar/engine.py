"""Reads one engine's `/metrics`: within a deadline, within a size, and never twice at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx

from hiqcache.sidecar.address import Address
from hiqcache.sidecar.failure import Failure, Reason
from hiqcache.sidecar.figures import Figures, read_figures
from hiqcache.sidecar.samples import is_sglang

LARGEST = 8 * 2**20
"""Bytes that an answer may have; SGLang's is 0.1 MB for one rank with all its histograms."""

KEEP_ALIVE_SECONDS = 4.0
"""Below the 5 s after which SGLang's server closes an idle connection, which would be a race."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """What one read gave: figures, or why there are none.

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
    failure: Failure | None
    seconds: float
    down_since: datetime | None
    last_answer: datetime | None

    @property
    def reason(self) -> Reason | None:
        """What the failure is counted as."""
        return None if self.failure is None else self.failure.reason


class ReadFailed(Exception):
    """Carries the failure out of a read."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


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
        self.errors: Counter[Reason] = Counter()
        self.unreadable: Counter[str] = Counter()
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
        figures, failure = None, None
        try:
            figures = await self._figures()
            self.unreadable.update(figures.unreadable)
        except ReadFailed as failed:
            failure = failed.failure
        self._note(failure)
        seconds = time.monotonic() - begin
        return Reading(self.name, figures, failure, seconds, self._down_since, self._last_answer)

    async def _figures(self) -> Figures:
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._text()
        except TimeoutError:
            raise ReadFailed(Failure.TIMEOUT) from None
        except httpx.HTTPError:
            raise ReadFailed(Failure.CONNECT) from None
        if unusable := Failure.of_text(text, sglang=is_sglang(text)):
            raise ReadFailed(unusable)
        # A large text takes a second, in which others want to be answered.
        return await asyncio.to_thread(read_figures, text)

    async def _text(self) -> str:
        body = bytearray()
        async with self._client.stream("GET", self._url) as response:
            if response.status_code != httpx.codes.OK:
                raise ReadFailed(Failure.of_status(response.status_code))
            # Compression was not offered; unpacking it could turn a kilobyte into a gigabyte.
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ReadFailed(Failure.COMPRESSED)
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > LARGEST:
                    raise ReadFailed(Failure.TOO_LARGE)
        # A byte that is no UTF-8 spoils its own line and no other.
        return body.decode(errors="replace")

    def _note(self, failure: Failure | None) -> None:
        """Count, and log once when the engine goes and once when it comes."""
        now = datetime.now(UTC)
        label = self.name or "the engine"
        if failure is None:
            if self._down_since is not None or self._last_answer is None:
                log.info("%s answers", label)
            self._down_since, self._last_answer = None, now
            return
        self.errors[failure.reason] += 1
        if self._down_since is None:
            log.warning("%s: no figures (%s): %s", label, failure.reason, failure.sentence)
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
