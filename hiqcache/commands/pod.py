"""`hiqcache pod`: both variants in containers. Compose does the work; this watches and tells."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hiqcache.errors import HiQCacheError, UsageError


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "pod",
        help="start, watch and stop the containers of compose.yaml",
        description="Start the containers of compose.yaml with Docker Compose and say how far they "
        "are, until all are ready or one has failed.",
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="P",
        help="of compose.yaml: bf16, int8, cpu, gpu-metrics; may be repeated. Default: "
        "COMPOSE_PROFILES in .env",
    )
    shared.add_argument("--file", type=Path, default=Path("compose.yaml"), metavar="PATH")
    shared.add_argument(
        "--env-file", type=Path, metavar="PATH", help="default: .env beside the compose file"
    )
    shared.add_argument("-p", "--project-name", metavar="NAME", help="default: the file's own")
    up = verbs.add_parser("up", parents=[shared], help="start them and watch until they are ready")
    up.set_defaults(run=run_up)
    status = verbs.add_parser("status", parents=[shared], help="state, memory and addresses")
    status.set_defaults(run=run_status)
    logs = verbs.add_parser("logs", parents=[shared], help="what they print")
    logs.add_argument("services", nargs="*", metavar="SERVICE", help="default: all")
    logs.add_argument("-f", "--follow", action="store_true", help="until Ctrl-C")
    logs.add_argument("--tail", default="all", metavar="N", help="only the last N lines of each")
    logs.set_defaults(run=run_logs)
    down = verbs.add_parser("down", parents=[shared], help="stop and remove them")
    down.add_argument(
        "--volumes", action="store_true", help="also downloaded weights and recorded metrics"
    )
    down.set_defaults(run=run_down)


def run_up(args: argparse.Namespace) -> int:
    from hiqcache.pod.docker_engine import connect
    from hiqcache.pod.status import status_table, where_to_look
    from hiqcache.pod.watch import PodFailed, Start, Watch

    client = connect()
    compose = _compose(args)
    if args.profile:
        compose.check_profiles()
    project, services = compose.project_name(), compose.services()
    print(f"{project}: {', '.join(services)}", flush=True)
    watch = Watch(client, project, services, lambda line: print(line, flush=True))
    try:
        found = watch.until_ready(Start(compose))
    except PodFailed as error:
        print(error.words, file=sys.stderr)
        raise
    except KeyboardInterrupt:
        raise HiQCacheError(
            "no longer watching; the containers keep running and those that wait will start "
            "(hiqcache pod status, hiqcache pod down)"
        ) from None
    print(f"\n{status_table(client, found)}\n\n{where_to_look(found)}")
    return 0


def run_status(args: argparse.Namespace) -> int:
    from hiqcache.pod.container import find_containers, reason
    from hiqcache.pod.docker_engine import connect
    from hiqcache.pod.status import status_table, where_to_look

    client = connect()
    project = _compose(args).project_name()
    found = find_containers(client, project)
    if not found:
        raise HiQCacheError(f"no container of {project} here: hiqcache pod up starts them")
    print(status_table(client, found))
    bad = [one for one in found.values() if one.failure is not None or one.looping]
    for one in bad:
        print(reason(client, one), file=sys.stderr)
    if any(one.sidecar and one.ready for one in found.values()):
        print(f"\n{where_to_look(found)}")
    return 1 if bad else 0


def run_logs(args: argparse.Namespace) -> int:
    follow = ["--follow"] if args.follow else []
    return _become(args, "logs", *follow, "--tail", args.tail, *args.services)


def run_down(args: argparse.Namespace) -> int:
    return _become(args, "down", *(["--volumes"] if args.volumes else []))


def _compose(args: argparse.Namespace) -> Any:
    from hiqcache.pod.compose import Compose

    return Compose(args.file, args.env_file, tuple(args.profile), args.project_name)


def _become(args: argparse.Namespace, *command: str) -> int:
    """Let Compose take over: its output, its signals, its exit code."""
    from hiqcache.pod.docker_engine import connect

    connect().close()
    compose = _compose(args)
    if args.profile:
        compose.check_profiles()
    else:
        # Whatever profile started them.
        compose.profiles = compose.all_profiles()
    words = compose.command(*command)
    sys.stdout.flush()
    try:
        os.execvp(words[0], words)
    except OSError as error:
        raise UsageError(f"{words[0]} cannot be run: {error.strerror}") from error
