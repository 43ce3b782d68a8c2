"""A quality run's figures as Markdown: for the terminal, `quality report` and the documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hiqcache.codec.catalog import lossy_codecs
from hiqcache.errors import UsageError
from hiqcache.lab.present import interval, markdown
from hiqcache.lab.quality.plots import plot_kl, plot_profile
from hiqcache.lab.quality.row import CONTROL
from hiqcache.lab.quality.targets import TARGET_PROMPTS
from hiqcache.lab.quality.verdict import UNITS, verdict

BEGIN, END = "<!-- hiqcache quality report: begin -->", "<!-- hiqcache quality report: end -->"
COLUMNS = (
    "comparison",
    "least restored share",
    "mean KL, nats",
    "KL over the noise floor",
    "top-1 agreement",
    "perplexity change",
    "first token the same",
    "answers the same",
    "bit-identical readings",
)
Summary = Mapping[str, Any]


def as_text(summary: Summary) -> str:
    """All tables of one result folder."""
    return "\n".join(_lines(summary))


def write_into(document: Path, summaries: Mapping[Path, Summary]) -> None:
    """Put the tables between the document's markers, and the plots into `images` beside it.

    Raises
    ------
    UsageError
        The document has not both markers.
    """
    text = document.read_text("utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"--into {document} has no lines {BEGIN!r} and {END!r} to write between")
    images = document.parent / "images"
    parts: list[str] = []
    for folder, summary in summaries.items():
        parts += [*_lines(summary), ""]
        plots = {"kl": plot_kl} | ({"layers": plot_profile} if summary.get("profile") else {})
        for name, draw in plots.items():
            path = draw(images / f"quality-{folder.name}-{name}.svg", summary)
            parts += [f"![{_title(summary)}: {name}](images/{path.name})", ""]
    if both := _served_beside_twin(list(summaries.values())):
        parts += [*both, ""]
    document.write_text("\n".join([head + BEGIN, "", *parts, END + tail]), "utf-8")


def _title(summary: Summary) -> str:
    origin = summary["provenance"]
    how = "served" if summary["kind"] == "served" else f"offline twin, {summary['dtype']}"
    return f"{summary['model']}, {how}, {origin['device_name']}"


def _lines(summary: Summary) -> Iterator[str]:
    prompts, origin = summary["prompts"], summary["provenance"]
    shortest, longest, tokens = prompts["prefix_tokens"]
    yield f"### {_title(summary)}"
    yield ""
    yield (
        f"{prompts['count']} prompts with prefixes of {shortest:,} to {longest:,} tokens, "
        f"{tokens:,} in all, from {prompts['source']}. Commit {_commit(origin['commit'])}, "
        f"{origin['date'][:10]}. In brackets: intervals of 95 %."
    )
    yield ""
    if summary["kind"] == "twin":
        yield from (*verdict(summary["comparisons"]), UNITS)
        yield ""
    yield markdown(COLUMNS, [_row(name, item) for name, item in summary["comparisons"].items()])
    tasks = [
        (name, kind, task)
        for name, item in summary["comparisons"].items()
        for kind, task in item["figures"].get("tasks", {}).items()
        if item["role"] != CONTROL
    ]
    if tasks:
        yield ""
        yield markdown(
            ("comparison", "task", "right before", "right after", "became wrong", "became right"),
            [
                (
                    *(name, kind),
                    interval(task["reference_accuracy"], ".0%"),
                    interval(task["accuracy"], ".0%"),
                    *(str(task["became_wrong"]), str(task["became_right"])),
                )
                for name, kind, task in tasks
            ],
        )
    if summary["targets"] and prompts["count"] < TARGET_PROMPTS:
        yield ""
        yield (
            f"The targets are stated for {TARGET_PROMPTS} prompts: with {prompts['count']} they "
            f"are shown and not decided."
        )
    for codec, judged in summary["targets"].items():
        yield ""
        yield markdown(
            (f"target, `{codec}`", "limit", "value", "met"),
            [
                (
                    *(entry["target"], _limit(entry["limit"]), f"{entry['value']:.5g}"),
                    "yes" if entry["met"] else "NO",
                )
                for entry in judged
            ],
        )


def _commit(commit: str) -> str:
    """Twelve digits, and whether the checkout had been changed."""
    digits, dirty, _ = commit.partition("+dirty")
    return digits[:12] + dirty


def _row(name: str, item: Mapping[str, Any]) -> tuple[str, ...]:
    figures, over = item["figures"], item.get("kl_over_noise")
    share = figures.get("restored_share")
    cells = [name, f"{share['least']:.1%}" if share else "-"]
    if "mean_kl" in figures:
        cells += [
            interval(figures["mean_kl"], ".2g"),
            interval(over, ".3g") if over else "-",
            interval(figures["top1_agreement"], ".2%"),
            interval(figures["perplexity_change"], "+.3%"),
        ]
    else:
        cells += ["-"] * 4
    if "first_token_agreement" in figures:
        sequences = figures["sequence_agreement"].items()
        cells += [
            interval(figures["first_token_agreement"], ".1%"),
            "; ".join(f"{length}: {share['value']:.1%}" for length, share in sequences),
        ]
    else:
        cells += ["-"] * 2
    identical = figures.get("identical_readings")
    cells.append("-" if identical is None else f"{identical} of {figures['prompts']}")
    return tuple(cells)


def _limit(limit: Any) -> str:
    if isinstance(limit, list | tuple):
        return f"{limit[0]:.5g} to {limit[1]:.5g}"
    return f"{limit:.5g}"


def _served_beside_twin(summaries: Sequence[Summary]) -> list[str]:
    """Codec by codec: the served figures and the twin's, where both are there."""
    rows = [
        (
            *(codec, _title(summary)),
            interval(item["figures"]["mean_kl"], ".2g"),
            interval(item["figures"]["top1_agreement"], ".2%"),
            interval(item["figures"]["perplexity_change"], "+.3%"),
        )
        for codec in lossy_codecs()
        for summary in summaries
        for name, item in summary["comparisons"].items()
        if name == codec and "mean_kl" in item["figures"]
    ]
    if len({summary["kind"] for summary in summaries}) < 2:
        return []
    head = ("codec", "where", "mean KL, nats", "top-1 agreement", "perplexity change")
    return ["### Served beside the twin", "", markdown(head, rows)]
