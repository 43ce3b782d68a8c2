"""`/api/v1/summary`: the same figures as `/metrics`, as JSON with a documented schema."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from hiqcache.sidecar.engine import Reading, Reason
from hiqcache.sidecar.figures import Copies, Figures
from hiqcache.sidecar.problems import Code, find_problems

Tokens = Annotated[float, Field(json_schema_extra={"unit": "tokens"})]
Bytes = Annotated[float, Field(json_schema_extra={"unit": "bytes"})]
Seconds = Annotated[float, Field(json_schema_extra={"unit": "seconds"})]
Requests = Annotated[float, Field(json_schema_extra={"unit": "requests"})]
Ratio = Annotated[float, Field(json_schema_extra={"unit": "ratio, 0 to 1"})]
Count = Annotated[float, Field(json_schema_extra={"unit": "count"})]


class ProblemModel(BaseModel):
    code: Code = Field(description="What kind of problem.")
    severity: Literal["error", "warning"] = Field(
        description="error: no figures, or not to be trusted. warning: it could work better."
    )
    text: str = Field(description="The problem in a sentence, for a person.")


class PoolModel(BaseModel):
    codec: str = Field(description="How a row is stored in L2.")
    transfer: str = Field(description="How rows and records move.")
    layout: str = Field(description="SGLang's memory layout of L2.")
    page_size: str = Field(description="Tokens of a page.")


class BytesPerTokenModel(BaseModel):
    configured: Bytes | None = Field(
        description="By the codec's record arithmetic; null without HiQCache."
    )
    backup: Bytes | None = Field(description="Measured; null before the first backup.")
    restore: Bytes | None = Field(description="Measured; null before the first restore.")


class L2Model(BaseModel):
    tokens: Tokens | None = Field(description="Tokens held; null without an L2.")
    tokens_max: Tokens | None = Field(description="Tokens that it can hold.")
    bytes: Bytes | None = Field(description="Bytes that hold tokens, of one rank.")
    bytes_max: Bytes | None = Field(description="Bytes in all, of one rank.")


class CopiesModel(BaseModel):
    tokens: Tokens = Field(description="Tokens copied since the engine started.")
    bytes: Bytes = Field(description="Bytes copied, of one rank.")
    timed_operations: Count = Field(description="Copies that were timed; 0 on a CPU.")
    timed_seconds: Seconds = Field(description="What the timed copies took together.")
    records: Count | None = Field(
        description="Records moved, a K and a V a token and layer; null without HiQCache."
    )
    codec_seconds: Seconds | None = Field(
        description="Time in which records were made and carried, or carried and decoded; null "
        "without HiQCache."
    )

    @classmethod
    def of(cls, copies: Copies) -> CopiesModel:
        return cls(
            tokens=copies.tokens,
            bytes=copies.bytes,
            timed_operations=copies.seconds.count,
            timed_seconds=copies.seconds.total,
            records=copies.records,
            codec_seconds=copies.codec_seconds,
        )


class TtftModel(BaseModel):
    requests: Requests = Field(description="Requests that got a first token.")
    seconds: Seconds = Field(description="The sum of their times to first token.")
    mean_seconds: Seconds | None = Field(description="seconds / requests; null before the first.")


class FiguresModel(BaseModel):
    """Counters count from the engine's start; it begins again at 0 when it restarts."""

    pool: PoolModel | None = Field(description="How L2 stores KV; null without HiQCache.")
    bytes_per_token: BytesPerTokenModel = Field(description="Bytes of one token in L2, one rank.")
    l1_tokens_max: Tokens | None = Field(description="Tokens that L1 can hold.")
    l2: L2Model = Field(description="The host tier.")
    prompt_tokens: Tokens = Field(description="Prompt tokens of finished requests.")
    hit_tokens: dict[str, Tokens] = Field(
        description="Prompt tokens that were not computed, by tier: device, host, storage."
    )
    hit_rate: Ratio | None = Field(
        description="Hit tokens of all tiers / prompt tokens; null before the first prompt."
    )
    backup: CopiesModel = Field(description="From L1 to L2.")
    restore: CopiesModel = Field(description="From L2 to L1.")
    restore_operations: Count = Field(description="Copies back from L2.")
    dropped_tokens: dict[str, Tokens] = Field(
        description="Tokens lost from L1 without a copy in L2, by reason."
    )
    evicted_tokens: Tokens = Field(description="Tokens evicted from L1.")
    ttft: TtftModel = Field(description="Time to first token.")
    generated_tokens: Tokens = Field(description="Generated tokens of finished requests.")
    running_requests: Requests | None = Field(description="Requests that are computed.")
    queued_requests: Requests | None = Field(description="Requests that wait.")
    staging_bytes: Bytes | None = Field(
        description="GPU memory of the transfer, of one rank; null without HiQCache."
    )
    memory_bytes: Bytes | None = Field(
        description="In use where the engine runs; null without HiQCache."
    )
    memory_limit_bytes: Bytes | None = Field(
        description="At which the kernel kills: the container's limit, else the machine's memory."
    )
    nonfinite_heads: Count | None = Field(
        description="Encoded heads that held a NaN or an infinity; null where no codec looks."
    )
    mismatches: Count | None = Field(
        description="Tokens and layers read from L2 that were not what was put there; null "
        "without HIQCACHE_VERIFY."
    )
    l3_bad_pages: dict[str, Count] | None = Field(
        description="Pages read from L3 and not used, by reason; null without an L3."
    )
    l3_failed_writes: Count | None = Field(
        description="Batches of pages that L3 did not write, all or in part; null without an L3."
    )

    @classmethod
    def of(cls, figures: Figures) -> FiguresModel:
        pool, ttft = figures.pool, figures.ttft
        return cls(
            pool=PoolModel(**vars(pool)) if pool.encoded else None,
            bytes_per_token=BytesPerTokenModel(
                configured=figures.bytes_per_token,
                backup=figures.backup.bytes_per_token,
                restore=figures.restore.bytes_per_token,
            ),
            l1_tokens_max=figures.l1_tokens_max,
            l2=L2Model(
                tokens=figures.l2_tokens,
                tokens_max=figures.l2_tokens_max,
                bytes=figures.l2_bytes,
                bytes_max=figures.l2_bytes_max,
            ),
            prompt_tokens=figures.prompt_tokens,
            hit_tokens=dict(figures.hit_tokens),
            hit_rate=figures.hit_rate,
            backup=CopiesModel.of(figures.backup),
            restore=CopiesModel.of(figures.restore),
            restore_operations=figures.restore_operations,
            dropped_tokens=dict(figures.dropped_tokens),
            evicted_tokens=figures.evicted_tokens,
            ttft=TtftModel(
                requests=ttft.count,
                seconds=ttft.total,
                mean_seconds=ttft.total / ttft.count if ttft.count else None,
            ),
            generated_tokens=figures.generated_tokens,
            running_requests=figures.running_requests,
            queued_requests=figures.queued_requests,
            staging_bytes=figures.staging_bytes,
            memory_bytes=figures.memory_bytes,
            memory_limit_bytes=figures.memory_limit_bytes,
            nonfinite_heads=figures.nonfinite_heads,
            mismatches=figures.mismatches,
            l3_bad_pages=None if figures.l3_bad_pages is None else dict(figures.l3_bad_pages),
            l3_failed_writes=figures.l3_failed_writes,
        )


class EngineModel(BaseModel):
    name: str = Field(description="As given to the sidecar; `engine` if it was given none.")
    up: bool = Field(description="Whether the engine answered this read.")
    reason: Reason | None = Field(description="Why it did not; null if it did.")
    down_since: datetime | None = Field(description="The first failed read; null if it answered.")
    last_answer: datetime | None = Field(description="Null if it has never answered.")
    scrape_seconds: Seconds = Field(description="Time of this read.")
    problems: list[ProblemModel] = Field(description="What is wrong, worst first; often empty.")
    figures: FiguresModel | None = Field(description="Null while the engine is down.")

    @classmethod
    def of(cls, reading: Reading) -> EngineModel:
        problems = sorted(find_problems(reading), key=lambda problem: problem.severity)
        return cls(
            name=reading.name or "engine",
            up=reading.figures is not None,
            reason=reading.reason,
            down_since=reading.down_since,
            last_answer=reading.last_answer,
            scrape_seconds=reading.seconds,
            problems=[ProblemModel.model_validate(vars(problem)) for problem in problems],
            figures=None if reading.figures is None else FiguresModel.of(reading.figures),
        )


class Summary(BaseModel):
    """Every engine of this sidecar, read when the request came."""

    time: datetime = Field(description="When it was read.")
    engines: list[EngineModel] = Field(description="In the order given to the sidecar.")


def summarize(readings: Sequence[Reading]) -> Summary:
    return Summary(
        time=datetime.now(UTC), engines=[EngineModel.of(reading) for reading in readings]
    )
