"""What `hiqcache serve` starts: SGLang's arguments and variables, completed for this machine.

On a machine without an accelerator that is the reference CPU platform with what it takes. Doctor
looks at the same, so that what it finds is what a server would meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hiqcache import capacity
from hiqcache.cpu_server import CPU_ARGUMENTS, CPU_ENVIRONMENT, L1_OPTION, L1_TOKENS
from hiqcache.errors import HiQCacheError
from hiqcache.pod.checks.gpu import no_accelerator
from hiqcache.pod.checks.memory import Memory
from hiqcache.pod.plan import Plan

PLATFORM = "SGLANG_PLATFORM"
L1_SHARE = 16
"""L1 takes at most one part in so many of the memory that is free; weights and L2 come on top."""
LEAST_L1_TOKENS = 1024


@dataclass(frozen=True)
class Launch:
    """A start of SGLang.

    Parameters
    ----------
    arguments
        SGLang's, with those brought along in front, so that the caller's count.
    brought
        Variables that are not the caller's own.
    note
        One line about what was brought along; empty where nothing was.
    """

    arguments: tuple[str, ...]
    brought: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {**environ, **self.brought}


def complete(arguments: Sequence[str], environ: Mapping[str, str]) -> Launch:
    """Bring the CPU platform along where it was asked for or nothing else is there.

    `--device` or `SGLANG_PLATFORM` with anything else leaves all to SGLang. Each argument and each
    variable that the caller has given stays as it is.

    Raises
    ------
    HiQCacheError
        There is an NVIDIA GPU that cannot be used: nobody gets a CPU for it by accident.
    """
    given = Launch(tuple(arguments))
    plan = Plan.parse(arguments, environ)
    device = plan.device or "cpu"
    platform = environ.get(PLATFORM, CPU_ENVIRONMENT[PLATFORM])
    if plan.help_only or device != "cpu" or platform != CPU_ENVIRONMENT[PLATFORM]:
        return given
    if plan.device or PLATFORM in environ:
        reason: str | None = "the CPU was asked for"
    else:
        reason = no_accelerator(environ)
    if reason is None:
        return given
    brought = _missing(CPU_ARGUMENTS, arguments)
    if not _has(arguments, L1_OPTION):
        brought += [L1_OPTION, str(_l1_tokens(plan))]
    variables = {name: value for name, value in CPU_ENVIRONMENT.items() if name not in environ}
    words = " ".join((f"{PLATFORM}={platform}", *brought))
    note = f"{reason}: HiQCache's CPU platform, to try it out, with {words}"
    return Launch((*brought, *arguments), variables, note if brought or variables else "")


def _missing(options: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Those of the options, with their values, that are not among the arguments."""
    kept: list[str] = []
    keep = True
    for word in options:
        if word.startswith("--"):
            keep = not _has(arguments, word)
        if keep:
            kept.append(word)
    return kept


def _has(arguments: Sequence[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in arguments)


def _l1_tokens(plan: Plan) -> int:
    geometry = plan.geometry()
    if geometry is None:
        return L1_TOKENS
    try:
        per_token = capacity.bytes_per_token(geometry, "bf16", plan.ranks.attention_tp)
    except HiQCacheError:
        return L1_TOKENS
    fits = Memory.read().available // L1_SHARE // per_token
    return max(LEAST_L1_TOKENS, min(L1_TOKENS, fits))
