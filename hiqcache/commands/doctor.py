"""`hiqcache doctor`: whether a server would run here, one line a check, before it is started."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from hiqcache.errors import UsageError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine or container, one line a check",
        description="Look at what a server needs and say what is missing and how to mend it. With "
        "SGLang's arguments sizes are checked too. Exits with 1 if a check failed. "
        "docs/doctor.md explains every check.",
    )
    parser.add_argument("--hooks", action="store_true", help="only SGLang and the hook targets")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only what takes no import of SGLang, and print only what is wrong",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.take_sglangs_arguments()
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from hiqcache.pod.check import failed
    from hiqcache.pod.doctor import check_platform, hook_checks, quick_checks, thorough_checks
    from hiqcache.pod.plan import Plan

    if args.hooks and args.quick:
        raise UsageError("expected one of --hooks and --quick, got both")
    if args.hooks:
        checks = hook_checks()
    else:
        platform, launch = check_platform(args.arguments, os.environ)
        plan = Plan.parse(launch.arguments, launch.environment(os.environ))
        checks = [platform, *(quick_checks(plan) if args.quick else thorough_checks(plan))]
    if args.json:
        print(json.dumps({"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        for check in checks:
            if not args.quick or check.status in ("warning", "failed"):
                print(check.line(), flush=True)
    return 1 if failed(checks) else 0
