"""What each pool says about itself on SGLang's own `/metrics`, under its name as label `pool`.

Without `--enable-metrics` the figures are kept and nobody serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hiqcache.codec.row import row_type
from hiqcache.engine import families
from hiqcache.engine.memory_metrics import MemoryMetrics
from hiqcache.engine.stopwatch import Stopwatch


class Followed:
    """A counter that is brought up to a total which somebody else keeps."""

    def __init__(self, counter: Any, total: Callable[[], int]) -> None:
        self._counter, self._total, self._seen = counter, total, 0

    def refresh(self) -> None:
        seen = self._total()
        self._counter.inc(seen - self._seen)
        self._seen = seen


class PoolMetrics:
    """The pool's facts as gauges, and the records that went either way as counters.

    Parameters
    ----------
    pool
        An `EncodedHostPool` whose transfer is bound.
    """

    def __init__(self, pool: Any) -> None:
        self.rank = families.rank_labels()
        here = {"pool": pool.name, **self.rank}

        def gauge(name: str, about: str, value: float, **labels: str) -> None:
            families.gauge(name, about, labels | here).set(value)

        gauge(
            "hiqcache_engine_pool_info",
            "How L2 stores rows; always 1",
            1,
            codec=pool.codec.name,
            transfer=pool.transfer.name,
            layout=pool.layout,
            page_size=str(pool.page_size),
            rows=row_type(pool.dtype).label,
        )
        gauge(
            "hiqcache_engine_bytes_per_token",
            "Bytes that one token takes in L2: the records of K and V in all layers",
            pool.size_per_token,
        )
        gauge(
            "hiqcache_engine_unencoded_bytes_per_token",
            "Bytes that one token would take in L2 as the rows that L1 holds",
            pool.unencoded_bytes_per_token,
        )
        gauge("hiqcache_engine_pool_tokens", "Tokens that L2 can hold", pool.size)
        gauge(
            "hiqcache_engine_pool_bytes",
            "Bytes of the host buffers that hold L2",
            pool.k_buffer.nbytes + pool.v_buffer.nbytes,
        )
        gauge(
            "hiqcache_engine_staging_bytes",
            "Device memory that the transfer holds beside L1",
            pool.staging_bytes,
        )

        def counter(name: str, about: str) -> Any:
            return families.counter(name, about, here)

        self._memory = MemoryMetrics(self.rank)
        self._records_per_token = 2 * pool.layer_num
        self._encoding, self._decoding = (Stopwatch(pool.transfer.device) for _ in range(2))
        self._backup_records = counter(
            "hiqcache_engine_backup_records",
            "Records written to L2, a K and a V record per token and layer",
        )
        self._restore_records = counter(
            "hiqcache_engine_restore_records",
            "Records read from L2, a K and a V record per token and layer",
        )
        self._operations = counter(
            "hiqcache_engine_restore_operations",
            "Restores begun; SGLang merges those of one batch",
        )
        self._encode_seconds = counter(
            "hiqcache_engine_encode_seconds",
            "Seconds in which rows were encoded and carried to L2",
        )
        self._decode_seconds = counter(
            "hiqcache_engine_decode_seconds",
            "Seconds in which records were carried from L2 and decoded",
        )
        self._mismatches = None
        if pool.verification is not None:
            gauge(
                "hiqcache_engine_checksum_bytes",
                "Host memory beside L2 that holds checksums",
                pool.verification.checksum_bytes,
            )
            self._mismatches = counter(
                "hiqcache_engine_mismatches",
                "Tokens and layers read from L2 that were not what was put there",
            )
        self._mismatches_seen = 0
        followed = (
            (
                "hiqcache_engine_nonfinite_heads",
                "Encoded heads that held a NaN or an infinity; they restore as NaN",
                pool.transfer.nonfinite_heads,
            ),
            (
                "hiqcache_engine_inexact_rows",
                "Encoded rows that could not be kept bit for bit; they restore within the bound",
                pool.transfer.inexact_rows,
            ),
        )
        self._followed = [
            Followed(counter(name, about), total)
            for name, about, total in followed
            if total() is not None
        ]

    def mismatches(self, found: int) -> None:
        """Note how many there have been in all."""
        if self._mismatches is not None:
            self._mismatches.inc(found - self._mismatches_seen)
            self._mismatches_seen = found

    @contextmanager
    def backup(self, tokens: int) -> Iterator[None]:
        """Around one copy of all layers to L2."""
        self._encoding.start()
        yield
        self._encoding.stop()
        self._backup_records.inc(tokens * self._records_per_token)
        self._encode_seconds.inc(self._encoding.finished_seconds())
        self._memory.refresh()
        for followed in self._followed:
            followed.refresh()

    @contextmanager
    def restore(self, tokens: int, *, first: bool, last: bool) -> Iterator[None]:
        """Around one layer's copy from L2, which may be its restore's first or last."""
        if first:
            self._operations.inc()
            self._decoding.start()
        yield
        self._restore_records.inc(2 * tokens)
        if last:
            self._decoding.stop()
            self._decode_seconds.inc(self._decoding.finished_seconds())
            self._memory.refresh()
