"""A server of the demo model as a test wants it, and the documents that it is asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hiqcache.capacity import Capacity, automatic, by_ratio, by_size
from hiqcache.geometry import Geometry
from hiqcache.lab.workload.documents import load_documents

CHUNK = 512
NEW_TOKENS = 2
LETTERS = 2_500
"""Of a document: some 600 tokens, more than a chunk, and no more than a slow CPU must compute."""


@dataclass(frozen=True)
class Case:
    """One server: a codec under a write policy, in a layout, with a page size and a sizing.

    Rows are bfloat16, as the demo model's are, unless the type says otherwise.
    """

    codec: str
    policy: str
    layout: str
    page_size: int
    sizing: tuple[str, ...]
    dtype: str = "bfloat16"

    @property
    def name(self) -> str:
        return f"{self.codec}-{self.policy}" + ("" if self.dtype == "bfloat16" else "-float16")

    @property
    def arguments(self) -> list[str]:
        return [
            *("--hicache-write-policy", self.policy),
            *("--hicache-mem-layout", self.layout),
            *("--page-size", str(self.page_size)),
            *(() if self.dtype == "bfloat16" else ("--dtype", self.dtype)),
            *("--chunked-prefill-size", str(CHUNK)),
            *self.sizing,
        ]

    def capacity(self, report: dict[str, Any]) -> Capacity:
        """What `hiqcache capacity` says of this server."""
        geometry = Geometry.load("smollm2-135m")
        device = report["device_tokens"]
        match self.sizing:
            case ("--hicache-size", size):
                return by_size(geometry, self.codec, int(size), page_size=self.page_size)
            case ("--hicache-ratio", ratio):
                return by_ratio(
                    geometry, self.codec, float(ratio), device, page_size=self.page_size
                )
            case ("--hicache-host-memory-fraction", fraction):
                return automatic(
                    geometry,
                    self.codec,
                    device,
                    report["auto_budget_bytes"],
                    fraction=float(fraction),
                    page_size=self.page_size,
                )
        raise AssertionError(self.sizing)


def prompts(count: int) -> list[str]:
    documents = load_documents()[:count]
    assert len(documents) == count
    return [f"{d.text[:LETTERS]}\n\nQuestion: {d.questions[0]}\nAnswer:" for d in documents]
