"""SGLang's arguments against what HiQCache refuses of them, by the engine's own list."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from hiqcache.capacity import bytes_per_token
from hiqcache.checkpoint import CONFIG, read_config
from hiqcache.config import Config
from hiqcache.engine.options import (
    Options,
    refuse_arguments,
    refuse_checkpoint,
    refuse_latent_attention,
    refuse_split,
    refuse_verification,
)
from hiqcache.errors import HiQCacheError
from hiqcache.pod.check import Check, attempt
from hiqcache.pod.checks.machine import weights_folder
from hiqcache.pod.plan import Plan

NAME = "arguments"


def check_arguments(plan: Plan, environ: Mapping[str, str] = os.environ) -> Check:
    """Values that are no numbers, and what the plugin would refuse once SGLang is imported."""
    if not plan.described:
        return Check(NAME, "skipped", "no server was described")
    if plan.misread:
        wrong = "; ".join(plan.misread)
        return Check(NAME, "failed", wrong, "SGLang would refuse it")
    try:
        config = Config.from_env(environ)
    except HiQCacheError:  # the check of the configuration says so
        config = Config()
    codec = config.codec
    if codec is None:
        return Check(NAME, "ok", "HiQCache refuses none, since it is off")
    if "--config" in plan.names:
        return Check(NAME, "skipped", "some are in the file that --config names")
    # A dynamic backend's own options are read by SGLang.
    options = replace(Options.parse(plan.arguments), hicache_storage_backend_extra_config=None)

    def look() -> str:
        refuse_arguments(options, codec)
        refuse_verification(options, config.verify)
        refuse_split(options, config.split)
        folder = weights_folder(plan, environ)
        if folder is not None and (folder / CONFIG).exists():
            model = read_config(folder, CONFIG)[0]
            refuse_latent_attention(model, codec)
            refuse_checkpoint(options, model, folder, codec)
        geometry = plan.geometry()
        if geometry is not None:
            # Heads that ranks cannot share, and rows that the codec does not take.
            bytes_per_token(geometry, codec, plan.ranks.attention_tp)
        return "HiQCache refuses none"

    return attempt(NAME, look)
