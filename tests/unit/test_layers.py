"""The design page and the import contracts name the same layers in the same order."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("container", "folder"), [("hiqcache", ""), ("hiqcache.lab", "lab/")])
def test_the_design_page_says_what_the_contract_holds(container: str, folder: str) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    [layers] = [c["layers"] for c in contracts if c.get("containers") == [container]]
    page = (ROOT / "docs/dev/design.md").read_text()
    table = page.split(f"| layer of `hiqcache/{folder}` |")[1].split("\n\n")[0]
    rows = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert [re.findall(r"`(\w+)`", row) for row in rows] == [layer.split(" | ") for layer in layers]
