"""What the pool says about itself on SGLang's own `/metrics`.

SGLang runs prometheus_client in its multiprocess mode: whatever a process registers appears on
the one `/metrics` of the server. That mode is chosen when prometheus_client is first imported,
by a variable that SGLang sets, so it is imported here only when a pool is built, in the
scheduler. Without `--enable-metrics` the figures are kept and nobody serves them.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.runtime_context import get_parallel


class PoolMetrics:
    """The pool's facts as gauges, and the records that went either way as counters.

    Parameters
    ----------
    pool
        An `EncodedHostPool` whose transfer is bound.
    """

    def __init__(self, pool: Any) -> None:
        from prometheus_client import Counter, Gauge

        rank = {"tp_rank": str(get_parallel().tp_rank)}

        def gauge(name: str, about: str, value: float, **labels: str) -> None:
            labels |= rank
            # The newest value wins: a rank has one pool, and a restarted one replaces it.
            made = Gauge(name, about, labels.keys(), multiprocess_mode="mostrecent")
            made.labels(**labels).set(value)

        gauge(
            "hiqcache_engine_pool_info",
            "How L2 stores rows; always 1",
            1,
            codec=pool.codec.name,
            transfer=pool.transfer.name,
            layout=pool.layout,
            page_size=str(pool.page_size),
        )
        gauge(
            "hiqcache_engine_bytes_per_token",
            "Bytes that one token takes in L2: the records of K and V in all layers",
            pool.size_per_token,
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
            pool.transfer.staging_bytes,
        )
        self._records_per_token = 2 * pool.layer_num
        self._backup = Counter(
            "hiqcache_engine_backup_records",
            "Records written to L2, a K and a V record a token and layer",
            rank.keys(),
        ).labels(**rank)
        self._restore = Counter(
            "hiqcache_engine_restore_records",
            "Records read from L2, a K and a V record a token and layer",
            rank.keys(),
        ).labels(**rank)

        self._operations = Counter(
            "hiqcache_engine_restore_operations",
            "Restores begun; SGLang merges those of one batch",
            rank.keys(),
        ).labels(**rank)

    def backed_up(self, tokens: int) -> None:
        self._backup.inc(tokens * self._records_per_token)

    def restored_layer(self, tokens: int, layer: int) -> None:
        self._restore.inc(2 * tokens)
        if layer == 0:
            self._operations.inc()
