"""Write the dashboards' JSON and docs/dashboard.md.

Usage: python monitoring/grafana/generate.py [--root DIR]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from boards.codec import CODEC
from boards.operator import OPERATOR
from boards.page import page_of
from boards.sdk import dashboard_of
from grafana_foundation_sdk.cog.encoder import JSONEncoder

BOARDS = (OPERATOR, CODEC)


def files() -> dict[str, str]:
    """Every generated file: its path below the repository's root, and its text."""
    generated = {
        f"monitoring/grafana/dashboards/{board.uid}.json": json.dumps(
            dashboard_of(board), cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False
        )
        + "\n"
        for board in BOARDS
    }
    generated["docs/dashboard.md"] = page_of(BOARDS)
    return generated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    repository = Path(__file__).resolve().parents[2]
    parser.add_argument("--root", type=Path, default=repository, help="write below this folder")
    root: Path = parser.parse_args().root
    for name, text in files().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
