"""`hiqcache serve`: SGLang's server with HiQCache in it, or one sentence why not."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="start SGLang's server with HiQCache in it, or say why not",
        description="Check in a moment what can be checked, then start "
        "`python -m sglang.launch_server` with the arguments given, and stand above it: a signal "
        "ends all of its processes, and a refusal is the last line. Without an accelerator it "
        "brings HiQCache's CPU platform along; --device or SGLANG_PLATFORM say otherwise.",
    )
    parser.take_sglangs_arguments()
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from hiqcache.pod.check import failed
    from hiqcache.pod.doctor import quick_checks
    from hiqcache.pod.launch import complete
    from hiqcache.pod.plan import Plan
    from hiqcache.preflight import refuse_excluded_plugin, refuse_unchosen_codec

    command = [sys.executable, "-m", "sglang.launch_server"]
    if Plan.parse(args.arguments).help_only:
        sys.stdout.flush()
        os.execv(sys.executable, [*command, *args.arguments])
    refuse_unchosen_codec(os.environ)
    refuse_excluded_plugin(os.environ)
    launch = complete(args.arguments, os.environ)
    environment = launch.environment(os.environ)
    checks = quick_checks(Plan.parse(launch.arguments, environment))
    stop = failed(checks)
    for check in checks:
        if check.status == ("failed" if stop else "warning"):
            print(f"hiqcache: {check.name}: {check.sentence()}", file=sys.stderr)
    if stop:
        return 1
    if launch.note:
        print(f"hiqcache: {launch.note}", file=sys.stderr, flush=True)

    from hiqcache.supervisor import supervise

    return supervise([*command, *launch.arguments], environment)
