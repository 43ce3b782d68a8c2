"""Whether the SGLang that is installed is the one that HiQCache was written against."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from hiqcache.config import Config, passed_over
from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check, attempt
from hiqcache.pod.plan import Plan
from hiqcache.preflight import DISTRIBUTION, refuse_excluded_plugin, refuse_unchosen_codec

FIX = "pip install 'hiqcache[sglang]'"


def check_configuration(plan: Plan, environ: Mapping[str, str] = os.environ) -> Check:
    """The `HIQCACHE_*` variables, and that SGLang will load the plugin."""

    def look() -> str:
        config = Config.from_env(environ)
        if plan.described:
            refuse_unchosen_codec(environ)
        refuse_excluded_plugin(environ)
        if config.enabled:
            found = f"HIQCACHE_CODEC={config.codec}, HIQCACHE_TRANSFER={config.transfer}"
        else:
            found = "HIQCACHE_CODEC=off: SGLang runs without HiQCache"
        # Nothing is wrong with them, and the engine warns of them itself.
        return "; ".join(filter(None, (found, passed_over(environ))))

    return attempt("configuration", look)


def pinned_version() -> str | None:
    """The SGLang release that HiQCache's own metadata names."""
    pins = (re.match(r"sglang==([^ ;]+)", line) for line in requires(DISTRIBUTION) or ())
    return next((pin[1] for pin in pins if pin), None)


def check_version() -> Check:
    """The pinned release, exactly: hooks are attached to its functions."""
    name = "SGLang"
    try:
        found, pinned = version("sglang"), pinned_version()
    except PackageNotFoundError as error:
        return Check(name, "failed", f"{error.name} is not installed", FIX)
    if pinned is not None and found != pinned:
        return Check(name, "failed", f"version {found}, expected {pinned}", FIX)
    return Check(name, "ok", f"version {found}")


def check_hooks() -> Check:
    """Import SGLang and compare every hook target with what the plugin expects of it."""

    def look() -> str:
        with warnings.catch_warnings():
            # About GPUs and formats that nobody asked for here.
            warnings.simplefilter("ignore")
            try:
                from hiqcache.engine import hooks

                table = hooks.all_hooks(Config(codec="int8", verify="full"))
            except ImportError as error:
                raise HiQCacheError(f"SGLang cannot be imported ({error}): {FIX}") from error
            hooks.check_hooks(table, verified=True)
        return f"all {len(table)} exist with the expected parameters"

    return attempt("hook targets", look)
