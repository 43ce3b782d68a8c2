"""Why a read of an engine gave no figures: the reason that is counted, and a sentence each."""

from __future__ import annotations

from enum import Enum, StrEnum


class Reason(StrEnum):
    """The label `reason` of `hiqcache_scrape_errors_total`."""

    TIMEOUT = "timeout"
    CONNECT = "connect"
    STATUS = "status"
    PARSE = "parse"


class Failure(Enum):
    """Each way to fail, with what it means and where to look."""

    TIMEOUT = Reason.TIMEOUT, "it does not answer in time: busy, or still starting."
    CONNECT = (
        Reason.CONNECT,
        "no connection, or one that broke off: is it running, and on that address?",
    )
    NO_METRICS = (
        Reason.STATUS,
        "it has no /metrics (status 404): was it started with --enable-metrics?",
    )
    FORBIDDEN = (
        Reason.STATUS,
        "its /metrics wants a password (status 401 or 403): SGLang's does not, so a proxy stands "
        "before it.",
    )
    STARTING = Reason.STATUS, "it is not ready (status 503): still starting, or shutting down."
    ELSEWHERE = (
        Reason.STATUS,
        "its /metrics points elsewhere (a redirect): give the sidecar the address itself.",
    )
    STATUS = Reason.STATUS, "its /metrics answers with an error: its log says which."
    TOO_LARGE = (
        Reason.PARSE,
        "its /metrics is larger than 8 MiB: fewer custom labels of SGLang's make it smaller.",
    )
    COMPRESSED = (
        Reason.PARSE,
        "its /metrics came compressed though nobody asked for it: a proxy stands before it.",
    )
    EMPTY = Reason.PARSE, "its /metrics is empty: no process of the engine counts anything yet."
    CUT_SHORT = (
        Reason.PARSE,
        "its /metrics ends in the middle of a line: it, or a proxy, broke off.",
    )
    NOT_SGLANG = (
        Reason.PARSE,
        "what it answers has no metric of SGLang's: is the address another program's?",
    )

    @property
    def reason(self) -> Reason:
        """What it is counted as."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """For a person, after a colon."""
        return self.value[1]

    @classmethod
    def of_status(cls, status: int) -> Failure:
        """Of an HTTP status other than 200."""
        if 300 <= status < 400:
            return cls.ELSEWHERE
        known = {404: cls.NO_METRICS, 401: cls.FORBIDDEN, 403: cls.FORBIDDEN, 503: cls.STARTING}
        return known.get(status, cls.STATUS)

    @classmethod
    def of_text(cls, text: str, *, sglang: bool) -> Failure | None:
        """What makes a whole text unusable; `sglang`: it has a metric of SGLang's."""
        if not text.strip():
            return cls.EMPTY
        if not sglang:
            return cls.NOT_SGLANG
        return None if text.endswith("\n") else cls.CUT_SHORT
