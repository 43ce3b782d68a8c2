"""What the plugin cannot see from inside: that SGLang will not load it at all."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.util import find_spec

from hiqcache.codec.catalog import RECOMMENDED
from hiqcache.config import OFF, Config, codec_choices
from hiqcache.errors import HiQCacheError, UsageError

DISTRIBUTION = "hiqcache"
PLUGIN = "hiqcache"


def refuse_unchosen_codec(environ: Mapping[str, str]) -> None:
    """Refuse to serve where nobody has said how L2 is stored: HiQCache would not be in it.

    Raises
    ------
    UsageError
        Neither `HIQCACHE_CODEC` nor the first version's switch says anything.
    """
    if "HIQCACHE_CODEC" in environ or Config.from_env(environ).enabled:
        return
    raise UsageError(
        f"HIQCACHE_CODEC is not set: {RECOMMENDED} is the one to begin with, {OFF} serves without "
        f"HiQCache; expected one of {', '.join(codec_choices())}"
    )


def refuse_excluded_plugin(environ: Mapping[str, str]) -> None:
    """Refuse an environment that asks for an encoded L2 and keeps the plugin out of SGLang.

    Two of SGLang's variables do that without a word: `SGLANG_PLUGINS` names the only plugins
    to load, and `SGLANG_PLATFORM` leaves out every distribution that offers a platform other
    than the one named, as HiQCache does.

    Raises
    ------
    HiQCacheError
        SGLang or the entry point is not installed, or one of the variables excludes it.
    """
    if not Config.from_env(environ).enabled:
        return
    if find_spec("sglang") is None:
        raise HiQCacheError("SGLang is not installed: pip install 'hiqcache[sglang]'")
    if PLUGIN not in entry_points(group="sglang.srt.plugins").names:
        raise HiQCacheError(
            "the installed HiQCache offers SGLang no plugin: install it with pip, a folder on "
            "PYTHONPATH has no entry points"
        )
    allowed = [name.strip() for name in environ.get("SGLANG_PLUGINS", "").split(",")]
    if any(allowed) and PLUGIN not in allowed:
        raise UsageError(
            f"SGLANG_PLUGINS={environ['SGLANG_PLUGINS']} keeps HiQCache out of SGLang: add "
            f"{PLUGIN} to it or unset it"
        )
    platform = environ.get("SGLANG_PLATFORM")
    offered = {
        entry.name
        for entry in entry_points(group="sglang.srt.platforms")
        if entry.dist is not None and entry.dist.name == DISTRIBUTION
    }
    if platform and platform not in offered:
        raise UsageError(
            f"SGLANG_PLATFORM={platform} makes SGLang leave out HiQCache, which offers "
            f"{', '.join(sorted(offered))}: unset it, or run that platform without HiQCache"
        )
