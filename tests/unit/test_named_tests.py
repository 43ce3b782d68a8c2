"""Pages that name tests name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def defined(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(("page", "least"), [("user-reports", 22), ("faults", 9)])
def test_every_named_test_exists(page: str, least: int) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= least
    for row in rows:
        named = NAMED.findall(row)
        assert named, f"no test in: {row[:80]}"
        assert row.count("::") == len(named), f"a test is misspelt in: {row[:80]}"
        for file, name in named:
            assert name in defined(ROOT / file), f"{file} has no {name}"
