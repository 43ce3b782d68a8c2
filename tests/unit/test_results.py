"""README and docs say what the rows in results/ say; `make results` writes them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("sglang", reason="the workload is SGLang's own")
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"<!-- results: [^\n]+ -->")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate_results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages() -> list[Path]:
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in every if BLOCK.search(path.read_text("utf-8"))]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_figure_is_that_of_its_row(generate: ModuleType, path: Path) -> None:
    assert generate.written(path.read_text("utf-8")) == path.read_text("utf-8"), "make results"


def test_a_figure_changed_by_hand_is_found(generate: ModuleType) -> None:
    text = (ROOT / "docs/experiment-b-results.md").read_text("utf-8")
    changed = text.replace("1.14 (1.13 to 1.21)", "1.41 (1.13 to 1.21)")
    assert changed != text
    assert generate.written(changed) == text


def test_every_kind_of_table_is_made(generate: ModuleType) -> None:
    for words in (
        "best results/experiments/h200-page-64",
        "tpot results/h200/tpot-3.jsonl",
        "transfer results/h200/transfer-4.jsonl",
        "tensor-parallel results/tensor-parallel/h200-x2.json",
        "quality results/quality/h200-served-120",
    ):
        kind, *arguments = words.split()
        made = generate.KINDS[kind](*arguments)
        assert "| ---" in made
        assert "fe7bd8e" in made
