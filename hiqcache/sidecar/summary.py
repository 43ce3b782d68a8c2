"""`/api/v1/summary`: the same figures as `/metrics`, as JSON with a documented schema."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from hiqcache.sidecar.engine import Reading
from hiqcache.sidecar.failure import Reason
from hiqcache.sidecar.figure import Figure, Kind
from hiqcache.sidecar.figures import Figures
from hiqcache.sidecar.headline import headline
from hiqcache.sidecar.problems import Code, find_problems

FIGURES_MODEL = (
    "Counters count from the engine's start; it begins again at 0 when it restarts. A figure that "
    "the engine has not, or that could not be read, is null."
)
GROUPS = {
    "bytes_per_token": "Bytes of one token in L2, one rank.",
    "l2": "The host tier.",
    "pools": "The pools of a stack, each figure by pool.",
    "backup": "From L1 to L2.",
    "restore": "From L2 to L1.",
    "ttft": "Time to first token.",
}
POOL_LABELS = {
    "codec": "How a row is stored in L2.",
    "transfer": "How rows and records move.",
    "layout": "SGLang's memory layout of L2.",
    "page_size": "Tokens of a page.",
    "rows": "What L1's rows are: BF16, FP16; other if the engine does not say.",
}


class ProblemModel(BaseModel):
    code: Code = Field(description="What kind of problem.")
    severity: Literal["error", "warning"] = Field(
        description="error: no figures, or not to be trusted. warning: it could work better."
    )
    text: str = Field(description="The problem in a sentence, for a person.")


def _figures_model() -> type[BaseModel]:
    """A model with a field for each figure that has one, nested by the dots in its path."""
    fields: dict[str, dict[str, Any]] = {"": {}}
    for figure in Figures.declared():
        if figure.json:
            group, _, name = figure.json.rpartition(".")
            fields.setdefault(group, {})[name] = _type(figure), _field(figure)
    top = fields.pop("")
    for group, inner in fields.items():
        model = create_model(f"{group.title().replace('_', '')}Model", **inner)
        top[group] = model, Field(description=f"{GROUPS[group]}")
    return create_model("FiguresModel", __doc__=FIGURES_MODEL, **top)


def _type(figure: Figure[Any]) -> Any:
    if figure.metric.kind is Kind.INFO:
        labels: dict[str, Any] = {
            label: (str, Field(description=text)) for label, text in POOL_LABELS.items()
        }
        return create_model("PoolModel", **labels) | None
    number = Annotated[float, Field(json_schema_extra={"unit": figure.metric.unit})]
    return (dict[str, number] if figure.metric.labels else number) | None


def _field(figure: Figure[Any]) -> Any:
    return Field(description=figure.metric.sentences("Null"))


if TYPE_CHECKING:
    FiguresModel = BaseModel
else:
    FiguresModel = _figures_model()


def figures_json(figures: Figures) -> dict[str, Any]:
    """The values by the paths of their fields."""
    nested: dict[str, Any] = {}
    for figure in figures.declared():
        if figure.json:
            group, _, name = figure.json.rpartition(".")
            inner = nested.setdefault(group, {}) if group else nested
            inner[name] = figures.values[figure.name]
    return nested


class EngineModel(BaseModel):
    name: str = Field(description="As given to the sidecar; `engine` if it was given none.")
    headline: str = Field(description="What a person reads first, in a line.")
    up: bool = Field(description="Whether the engine answered this read.")
    reason: Reason | None = Field(description="Why it did not; null if it did.")
    down_since: datetime | None = Field(description="The first failed read; null if it answered.")
    last_answer: datetime | None = Field(description="Null if it has never answered.")
    scrape_seconds: float = Field(
        description="Time of this read.", json_schema_extra={"unit": "seconds"}
    )
    problems: list[ProblemModel] = Field(description="What is wrong, worst first; often empty.")
    unreadable: list[str] = Field(
        description="Figures that the engine gives and that are no numbers: null below."
    )
    figures: FiguresModel | None = Field(description="Null while the engine is down.")

    @classmethod
    def of(cls, reading: Reading) -> EngineModel:
        problems = sorted(find_problems(reading), key=lambda problem: problem.severity)
        return cls(
            name=reading.name or "engine",
            headline=headline(reading.figures),
            up=reading.figures is not None,
            reason=reading.reason,
            down_since=reading.down_since,
            last_answer=reading.last_answer,
            scrape_seconds=reading.seconds,
            problems=[ProblemModel.model_validate(vars(problem)) for problem in problems],
            unreadable=[] if reading.figures is None else list(reading.figures.unreadable),
            figures=None
            if reading.figures is None
            else FiguresModel.model_validate(figures_json(reading.figures)),
        )


class Summary(BaseModel):
    """Every engine of this sidecar, read when the request came."""

    time: datetime = Field(description="When it was read.")
    engines: list[EngineModel] = Field(description="In the order given to the sidecar.")


def summarize(readings: Sequence[Reading]) -> Summary:
    return Summary(
        time=datetime.now(UTC), engines=[EngineModel.of(reading) for reading in readings]
    )
