"""Write the list of docs/metrics.md from the declarations of the sidecar's figures.

Usage: python docs/generate_metrics.py [--out FILE]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from hiqcache.sidecar.collector import OWN
from hiqcache.sidecar.figure import Figure, Metric, Section
from hiqcache.sidecar.figures import Figures

PAGE = Path(__file__).with_name("metrics.md")
BEGIN = "<!-- Written by `make metrics` from hiqcache/sidecar/figures.py; do not edit. -->\n"
END = "<!-- End of what `make metrics` writes. -->\n"
HEAD = "| metric | type | unit | source | meaning |\n| --- | --- | --- | --- | --- |\n"


def page(text: str) -> str:
    """The page with its list written anew; everything around it stays."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, "the page has lost the marks between which its list stands"
    return before + BEGIN + "\n".join(sections()) + END + after


def sections() -> Iterator[str]:
    """A heading and a table each."""
    yield table("The sidecar and its read", OWN)
    title, rows = "", list[Metric]()
    for declared in vars(Figures).values():
        if isinstance(declared, Section):
            if rows:
                yield table(title, rows)
            title, rows = declared.title, []
        elif isinstance(declared, Figure) and declared.metric.name:
            rows.append(declared.metric)
    yield table(title, rows)


def table(title: str, metrics: Iterable[Metric]) -> str:
    return f"\n### {title}\n\n{HEAD}" + "".join(map(row, metrics))


def row(metric: Metric) -> str:
    labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
    meaning = metric.sentences("Absent")
    cells = (f"`{metric.name}{labels}`", metric.kind, metric.unit, metric.origin, meaning)
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=PAGE, help="write this file")
    out: Path = parser.parse_args().out
    out.write_text(page(PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
