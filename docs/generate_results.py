"""Write the figures of README and docs from the rows in results/, or say where they differ.

Usage: python docs/generate_results.py [--check]

A page holds a table between two lines, the first of which says what it is made from:

    <!-- results: experiment b results/experiments/h200-page-64 -->
    <!-- end of results -->
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hiqcache.lab.demo.report import table
from hiqcache.lab.demo.show import Finding
from hiqcache.lab.experiment.plots import write_plots
from hiqcache.lab.experiment.report import front, made_by, section
from hiqcache.lab.experiment.row import load_provenance, load_rows
from hiqcache.lab.present import markdown
from hiqcache.lab.quality.bias import Biased
from hiqcache.lab.quality.ladder import bias_table, ladder_table, plot_ladder
from hiqcache.lab.quality.report import as_text
from hiqcache.lab.quality.summary import read_summary
from hiqcache.lab.row import read

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?P<first><!-- results: (?P<words>[^\n]+) -->\n).*?(?P<last><!-- end of results -->)",
    re.DOTALL,
)


def experiment(name: str, folder: str) -> str:
    """One experiment of a folder, with what it was made by."""
    return f"{section(load_rows(ROOT / folder), name)}\n\n{_origins(folder)}"


def best(folder: str) -> str:
    """The best of BF16 beside the best of each codec in B, for the front page."""
    return f"{front(load_rows(ROOT / folder))}\n\n{_origins(folder)}"


def quality(folder: str) -> str:
    """Figures of a quality run."""
    return as_text(read_summary(ROOT / folder))


def codecs(*folders: str) -> str:
    """The ladder on every model that was measured."""
    rows = ", ".join(f"`{folder}`" for folder in folders)
    return f"{ladder_table([read_summary(ROOT / folder) for folder in folders])} Rows: {rows}."


def bias(file: str) -> str:
    """Attention under a simulated bias of K."""
    entries = read(ROOT / file)
    origin = made_by(entries[0]["provenance"])
    return f"{bias_table([Biased.parse(row) for row in entries[1:]])}\n\n{origin}. Rows: `{file}`."


def tpot(file: str) -> str:
    """TPOT of streams, quiet and beside restores."""
    rows = read(ROOT / file)
    arms: dict[str, dict[bool, dict[str, Any]]] = {}
    for row in rows:
        arms.setdefault(row["arm"], {})[row["under_restores"]] = row
    plain = next(iter(arms.values()))[True]["tpot_ms"]["p50"]

    def cell(row: dict[str, Any]) -> str:
        found = row["tpot_ms"]
        return f"{found['p50']:.2f} ({found['p20']:.2f} to {found['p80']:.2f})"

    table = markdown(
        ("arm", "quiet, ms", "restores running, ms", "times", "tokens restored meanwhile"),
        [
            (
                *(arm, cell(of[False]), cell(of[True])),
                f"{of[True]['tpot_ms']['p50'] / plain:.2f}",
                f"{of[True]['restored_tokens']:,}",
            )
            for arm, of in arms.items()
        ],
    )
    rounds = len(rows[0]["samples_ms"])
    origin = made_by(rows[0]["provenance"])
    return f"{table}\n\nMedians of {rounds} rounds (p20 to p80). {origin}. Rows: `{file}`."


def transfer(file: str) -> str:
    """Tokens/ms of `fused` with each codec beside SGLang's mover, in shares of a plain copy."""
    rows = read(ROOT / file)
    copies = {r["direction"]: r["wire_gb_per_s"] for r in rows if r["transfer"] == "memcpy"}
    points: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["transfer"] in ("sglang", "fused"):
            at = (row["layout"], row["page_size"], row["tokens"], row["direction"])
            points.setdefault(at, {})[row["codec"]] = row
    complete = {at: of for at, of in points.items() if "bf16" in of and len(of) > 1}
    codecs = sorted({codec for of in complete.values() for codec in of} - {"bf16"})

    def cells(row: dict[str, Any] | None, plain: dict[str, Any]) -> tuple[str, ...]:
        if row is None:
            return "-", "-", "-"
        low, high = (row["tokens"] / row[end] for end in ("p80_ms", "p20_ms"))
        times = row["tokens_per_ms"] / plain["tokens_per_ms"]
        spread = f"{row['tokens_per_ms']:,.0f} ({low:,.0f} to {high:,.0f})"
        return spread, f"{times:.2f}", f"{row['link_share']:.2f}"

    lines = [
        (
            f"`{layout}`, {page}",
            *(f"{tokens:,}", direction, f"{of['bf16']['tokens_per_ms']:,.0f}"),
            f"{of['bf16']['link_share']:.2f}",
            *(cell for codec in codecs for cell in cells(of.get(codec), of["bf16"])),
        )
        for (layout, page, tokens, direction), of in complete.items()
    ]
    head = ["layout, page", "tokens", "direction", "SGLang BF16", "of memcpy"]
    head += [name for codec in codecs for name in (f"`{codec}`", "times", "of memcpy")]
    first = next(row for row in rows if row["transfer"] == "fused")
    return (
        f"{markdown(head, lines)}\n\nTokens/ms, medians of {first['repeats']} (p20 to p80), beside "
        f"a pinned memcpy of {copies['backup']:.1f} GB/s out and {copies['restore']:.1f} in. "
        f"{made_by(first)}. Rows: `{file}`."
    )


def tensor_parallel(file: str) -> str:
    """What two ranks answer beside one."""
    found: dict[str, Any] = json.loads((ROOT / file).read_text("utf-8"))
    lines = [
        (
            name,
            f"{row['mean_kl']:.4f}",
            f"{row['top1_agreement']:.2%}",
            f"{row['same_answers']} of {row['answers']}",
        )
        for name, row in found["agreement"].items()
    ]
    table = markdown(("compared", "mean KL, nats", "top-1", "answers the same"), lines)
    return f"{table}\n\n{made_by(found['provenance'])}. Rows: `{file}`."


def demo(file: str) -> str:
    """What `hiqcache demo` printed."""
    found: dict[str, Any] = json.loads((ROOT / file).read_text("utf-8"))
    return f"```\n{table([Finding.parse(arm) for arm in found['arms']])}\n```"


TWINS = ("results/quality/twin-smollm2", "results/quality/twin-gemma3")
"""Folders of the offline twin, for the plot of divergence over bytes."""

PLOTS = {
    "results/experiments/h200-page-64": {"b": "experiment-b.png"},
    "results/experiments/h200-qwen3-8b": {"curve": "curve.png", "crossover": "crossover.png"},
}
"""By folder, which picture goes under which name into docs/images. Not compared: another release
of matplotlib draws another file."""


KINDS: dict[str, Callable[..., str]] = {
    "experiment": experiment,
    "best": best,
    "bias": bias,
    "codecs": codecs,
    "demo": demo,
    "quality": quality,
    "tpot": tpot,
    "transfer": transfer,
    "tensor-parallel": tensor_parallel,
}


def _origins(folder: str) -> str:
    made = [made_by(origin) for origin in load_provenance(ROOT / folder)]
    return f"{'; '.join(made)}. Rows: `{folder}`."


def written(page: str) -> str:
    """A page with every block made anew."""

    def block(found: re.Match[str]) -> str:
        kind, *words = found["words"].split()
        return f"{found['first']}\n{KINDS[kind](*words)}\n\n{found['last']}"

    return BLOCK.sub(block, page)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing, exit 1 if they differ"
    )
    check = parser.parse_args().check
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text("utf-8")
        if (made := written(text)) != text:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(made, "utf-8")
    if not check:
        for folder, plots in PLOTS.items():
            for path in write_plots(ROOT / folder, ROOT / "out/plots"):
                if path.stem in plots:
                    path.replace(ROOT / "docs/images" / plots[path.stem])
        if twins := [read_summary(ROOT / folder) for folder in TWINS]:
            plot_ladder(ROOT / "docs/images/codecs.png", twins)
    for name in stale:
        print(f"{name}: {'differs from results/: run make results' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
