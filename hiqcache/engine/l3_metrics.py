"""What L3 does to pages, on SGLang's own `/metrics`; there once an L3 backend is attached."""

from __future__ import annotations

from collections.abc import Mapping

from hiqcache.codec.page import Fault


class L3Metrics:
    """Pages that were read and not used, by reason, and writes that failed.

    Parameters
    ----------
    labels
        The rank's.
    page_bytes
        Bytes of one stored page, header included.
    """

    def __init__(self, labels: Mapping[str, str], page_bytes: int) -> None:
        from prometheus_client import Counter, Gauge

        gauge = Gauge(
            "hiqcache_engine_l3_page_bytes",
            "Bytes of one page in L3: its records and a header",
            labels.keys(),
            multiprocess_mode="mostrecent",
        )
        gauge.labels(**labels).set(page_bytes)
        bad = Counter(
            "hiqcache_engine_l3_bad_pages",
            "Pages read from L3 and not used, by reason; their tokens are computed again",
            (*labels, "reason"),
        )
        self._bad = {fault: bad.labels(**labels, reason=fault.value) for fault in Fault}
        self._failed = Counter(
            "hiqcache_engine_l3_failed_writes",
            "Batches of pages that the L3 backend did not write, all or in part",
            labels.keys(),
        ).labels(**labels)

    def bad_page(self, fault: Fault) -> None:
        self._bad[fault].inc()

    def failed_write(self) -> None:
        self._failed.inc()
