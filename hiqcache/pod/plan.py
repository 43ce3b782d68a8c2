"""What a server is going to be started with: the few SGLang arguments that sizes depend on.

Read with SGLang's names and without SGLang, whose import takes longer than all quick checks
together. An argument that is not listed is passed over; a value that SGLang's own parser will
refuse is left to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hiqcache import capacity
from hiqcache.config import Config
from hiqcache.errors import HiQCacheError
from hiqcache.geometry import Geometry
from hiqcache.ranks import Ranks
from hiqcache.unsupported_models import ONE_POOL_FLAG

L2_SIZE = "--hicache-size"
NAMES = {
    "--model-path": "model",
    "--model": "model",
    "--host": "host",
    "--port": "port",
    "--device": "device",
    L2_SIZE: "l2_gigabytes",
    "--hicache-ratio": "l2_ratio",
    "--tp-size": "tp",
    "--tp": "tp",
    "--tensor-parallel-size": "tp",
    "--pp-size": "pp",
    "--pipeline-parallel-size": "pp",
    "--dp-size": "dp",
    "--data-parallel-size": "dp",
    "--attn-dp-size": "attention_dp",
    "--attention-data-parallel-size": "attention_dp",
    "--nnodes": "nodes",
    "--max-total-tokens": "l1_tokens",
    "--page-size": "page_size",
}
WHOLE = ("port", "tp", "pp", "dp", "attention_dp", "nodes", "page_size", "l2_gigabytes")
HELP = ("-h", "--help")
L2_SWITCHES = ("--enable-hierarchical-cache", "--enable-hicache")
ATTENTION_DP_SWITCH = "--enable-dp-attention"
"""SGLang's older spelling, which makes `--dp-size` count groups inside the TP ranks."""

SUFFIXES = {
    **{"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12},
    **{"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40},
}
"""What SGLang's `human_readable_int` takes behind a number of tokens."""


@dataclass(frozen=True)
class Plan:
    """A server to be.

    Parameters
    ----------
    model
        A folder or a Hugging Face id; None when no server was described.
    l2
        Whether there is an L2 at all.
    l2_gigabytes, l2_ratio
        As SGLang takes them: decimal GB of one rank, or L1's tokens times this.
    ranks
        Processes, each with an L2 of its own.
    l1_tokens
        Tokens of the device pool, where they are pinned.
    codec
        How rows are stored in L2; `bf16` is also SGLang's own pool.
    enabled
        Whether HiQCache is in it.
    device
        `--device`, where it was given.
    gpu
        Whether it runs on an NVIDIA GPU.
    help_only
        SGLang is only asked for its help and starts nothing.
    arguments
        The words that all this was read from.
    misread
        A phrase for each value that is not the number it has to be.
    """

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 30000
    l2: bool = False
    l2_gigabytes: int | None = None
    l2_ratio: float | None = None
    ranks: Ranks = Ranks()
    l1_tokens: int | None = None
    page_size: int = 1
    codec: str = "bf16"
    enabled: bool = False
    device: str | None = None
    gpu: bool = True
    help_only: bool = False
    arguments: tuple[str, ...] = ()
    misread: tuple[str, ...] = ()

    @classmethod
    def parse(cls, arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> Plan:
        """Read SGLang's arguments, as `--name value` or `--name=value`; the last one counts."""
        found = _values(arguments)
        try:
            config = Config.from_env(environ)
        except HiQCacheError:  # the check of the configuration says so
            config = Config()
        return cls(
            model=found.get("model"),
            host=found.get("host", cls.host),
            port=_whole(found.get("port")) or cls.port,
            l2=any(word in L2_SWITCHES for word in arguments),
            l2_gigabytes=_whole(found.get("l2_gigabytes")),
            l2_ratio=_number(found.get("l2_ratio")),
            ranks=_ranks(found, ATTENTION_DP_SWITCH in arguments),
            l1_tokens=_tokens(found.get("l1_tokens")),
            page_size=_whole(found.get("page_size")) or 1,
            codec=config.codec or "bf16",
            enabled=config.enabled,
            device=found.get("device"),
            gpu=found.get("device", "cuda") == "cuda"
            and environ.get("SGLANG_PLATFORM") != "hiqcache_cpu",
            help_only=any(word in HELP for word in arguments),
            arguments=tuple(arguments),
            misread=tuple(_misread(found)),
        )

    @property
    def names(self) -> set[str]:
        """The options that were given."""
        return {word.partition("=")[0] for word in self.arguments}

    @property
    def described(self) -> bool:
        """Whether any server was described at all."""
        return self.model is not None or self.l2

    @property
    def one_pool(self) -> bool:
        """Whether sliding-window layers share the pool of the others."""
        return ONE_POOL_FLAG in self.names

    def geometry(self) -> Geometry | None:
        """KV of the largest pipeline stage: from the model's folder, or shipped for its id.

        None if neither has it.
        """
        if self.model is None:
            return None
        sources = (self.model, self.model.rpartition("/")[2])
        for source in sources if Path(self.model).is_dir() else sources[1:]:
            try:
                whole = Geometry.load(source, one_pool=self.one_pool)
                return replace(whole, layers=self.ranks.layers(whole.layers))
            except HiQCacheError:
                continue
        return None

    def l2_bytes(self) -> int | None:
        """Bytes of L2 of all ranks of a host; 0 without one, None where it is not known."""
        if not self.l2:
            return 0
        if self.l2_gigabytes:
            return self.l2_gigabytes * 10**9 * self.ranks.on_a_host
        geometry = self.geometry()
        if not self.l2_ratio or not self.l1_tokens or geometry is None:
            return None
        try:
            pool = capacity.by_ratio(
                geometry,
                self.codec,
                self.l2_ratio,
                self.l1_tokens,
                page_size=self.page_size,
                tp=self.ranks.attention_tp,
            )
        except HiQCacheError:
            return None
        return pool.bytes_allocated * self.ranks.on_a_host

    def l1_bytes(self) -> int | None:
        """Bytes of one rank's L1; None where it depends on what is unknown."""
        geometry = self.geometry()
        if not self.l1_tokens or geometry is None:
            return None
        try:
            per_token = capacity.bytes_per_token(geometry, "bf16", self.ranks.attention_tp)
            return self.l1_tokens * per_token
        except HiQCacheError:
            return None


def _ranks(found: Mapping[str, str], old_attention_dp: bool) -> Ranks:
    counts = {name: _whole(found.get(name)) or 1 for name in ("tp", "pp", "nodes")}
    dp, groups = (_whole(found.get(name)) or 1 for name in ("dp", "attention_dp"))
    if old_attention_dp and groups == 1:
        dp, groups = 1, dp
    # What does not divide is left to SGLang, which refuses it.
    groups = groups if counts["tp"] % groups == 0 else 1
    return Ranks(**counts, replicas=dp, attention_groups=groups)


def _values(arguments: Sequence[str]) -> dict[str, str]:
    found = {}
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in NAMES and (equals or not following.startswith("--")):
            found[NAMES[name]] = value if equals else following
    return found


def _misread(found: Mapping[str, str]) -> Iterator[str]:
    options = {field: option for option, field in reversed(NAMES.items())}
    for field, value in found.items():
        option = options[field]
        if field in WHOLE and _whole(value) is None and (option, value) != (L2_SIZE, "0"):
            yield f"{option} {value}: expected a whole number from 1"
        elif field == "l2_ratio" and _number(value) is None:
            yield f"{option} {value}: expected a number above 0"
        elif field == "l1_tokens" and _tokens(value) is None:
            yield f"{option} {value}: expected a number of tokens, such as 8192 or 8Ki"


def _tokens(text: str | None) -> int | None:
    """A number of tokens, as SGLang reads it: `8192`, `8k`, `8Ki`."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if text and text.endswith(suffix):
            number = _number(text.removesuffix(suffix))
            return None if number is None else int(number * SUFFIXES[suffix])
    return _whole(text)


def _whole(text: str | None) -> int | None:
    """A whole number from 1; None for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() and int(text) else None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None
