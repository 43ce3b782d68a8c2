"""Which checks make up each of the doctor's three rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check
from hiqcache.pod.checks.arguments import check_arguments
from hiqcache.pod.checks.containers import check_containers
from hiqcache.pod.checks.gpu import check_gpus
from hiqcache.pod.checks.machine import (
    check_disk,
    check_memlock,
    check_model,
    check_port,
    check_shared_memory,
)
from hiqcache.pod.checks.memory import Memory, check_largest, check_memory
from hiqcache.pod.checks.software import check_configuration, check_hooks, check_version
from hiqcache.pod.checks.toolchain import check_compilers, check_kernels
from hiqcache.pod.launch import Launch, complete
from hiqcache.pod.plan import Plan


def check_platform(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[Check, Launch]:
    """What a server runs on, and the start that all other checks are of."""
    name = "platform"
    try:
        launch = complete(arguments, environ)
    except HiQCacheError as error:
        return Check(name, "failed", str(error)), Launch(tuple(arguments))
    return Check(name, "ok", launch.note or "as SGLang chooses"), launch


def hook_checks() -> list[Check]:
    """What an image's build needs to know; no GPU."""
    found = check_version()
    # Without the release there is nothing to compare.
    return [found] if found.status == "failed" else [found, check_hooks()]


def quick_checks(plan: Plan) -> list[Check]:
    """What an image's entrypoint looks at before SGLang starts: neither torch nor SGLang."""
    if plan.help_only:
        return []
    return [
        check_configuration(plan),
        check_arguments(plan),
        check_model(plan),
        check_memory(plan, Memory.read()),
        check_shared_memory(plan),
        check_memlock(plan),
        check_port(plan),
        check_disk(plan),
    ]


def thorough_checks(plan: Plan) -> list[Check]:
    """Everything."""
    return [
        *quick_checks(plan),
        check_largest(plan, Memory.read()),
        *check_gpus(plan),
        check_compilers(plan),
        check_kernels(),
        *hook_checks(),
        *check_containers(plan),
    ]
