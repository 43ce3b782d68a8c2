"""`hiqcache conformance`: make vectors on one device, check them on another, bit for bit."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hiqcache.commands.packages import require
from hiqcache.errors import UsageError

if TYPE_CHECKING:
    from hiqcache.codec.conformance import VectorResult

# Repeated from codec.conformance, which needs torch and this parser must not.
DEVICES = ("cpu", "cuda", "mps")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("conformance", help="prove the codecs bit-exact between devices")
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    make = actions.add_parser("generate", help="write a file of vectors")
    make.add_argument("--device", choices=DEVICES, default="cpu")
    make.add_argument("--out", type=Path, help="default: conformance-DEVICE.json")
    make.set_defaults(run=run_generate)

    check = actions.add_parser("check", help="encode and decode a file's vectors here and compare")
    check.add_argument("file", type=Path)
    check.add_argument("--device", choices=DEVICES, default="cpu")
    check.add_argument("--json", action="store_true", help="print one JSON document")
    check.set_defaults(run=run_check)


def run_generate(args: argparse.Namespace) -> int:
    require("torch", extra="codec")
    from hiqcache.codec.conformance import generate, resolve_device

    path: Path = args.out or Path(f"conformance-{args.device}.json")
    if path.exists():
        raise UsageError(f"{path} exists already: move it away or name another file with --out")
    document = generate(resolve_device(args.device))
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    print(f"wrote {len(document['vectors'])} vectors made on {args.device} to {path}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    require("torch", extra="codec")
    from hiqcache.codec.conformance import check, load, made_by, resolve_device

    device = resolve_device(args.device)
    document = load(args.file)
    results = check(document, device)
    differing = sum(result.difference is not None for result in results)
    if args.json:
        report = {
            "file": str(args.file),
            "made_by": document.get("provenance"),
            "checked_by": made_by(device),
            "checked": len(results),
            "differing": differing,
            "vectors": [dataclasses.asdict(result) for result in results],
        }
        print(json.dumps(report, indent=1))
    else:
        for result in results:
            print(_line(result))
        print(f"{len(results)} vectors checked on {args.device}, {differing} differ")
    return 1 if differing else 0


def _line(result: VectorResult) -> str:
    state = "equal  " if result.difference is None else "DIFFERS"
    line = f"{state} {result.codec:12} {result.side} {result.input}"
    return line if result.difference is None else f"{line}: {result.difference}"
