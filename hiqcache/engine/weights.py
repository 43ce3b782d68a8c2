"""Which weights made the KV that is cached, for L3's keys: a page of other weights is never found.

SGLang's keys name the model, not its weights: after an update, or with another checkpoint of the
same shape, they find pages that the old ones made (sgl-project/sglang#26792).
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS
from sglang.srt.managers.mm_utils import tensor_hash
from sglang.srt.runtime_context import get_parallel

from hiqcache.errors import HiQCacheError

logger = logging.getLogger(__name__)

NOT_THE_MODEL = ("_name_or_path", "name_or_path", "transformers_version")
"""What a configuration says of where it came from; it may differ from host to host."""

IDENTITY_LETTERS = 16
"""64 bits, in hexadecimal."""


def checksum(model: torch.nn.Module, config: dict[str, Any]) -> str:
    """Of every parameter and saved buffer as it lies on the device, and of the configuration.

    The same on every host that holds the same part of the same model, whatever the path. A GPU
    hashes with SGLang's kernel, a CPU with SHA-256.

    Returns
    -------
    64 hexadecimal letters.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(_tensors(model), key=lambda each: each[0]):
        head = f"{name} {tensor.dtype} {tuple(tensor.shape)} "
        found = tensor_hash(tensor.detach()) if tensor.numel() else 0
        digest.update(f"{head}{found:016x}\n".encode())
    told = {name: value for name, value in config.items() if name not in NOT_THE_MODEL}
    words = json.dumps(told, sort_keys=True, default=lambda value: type(value).__name__)
    digest.update(words.encode())
    return digest.hexdigest()


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    saved = model.state_dict().keys()
    # Tables that are computed, such as those of rotary embeddings, grow while a server runs.
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


class Weights:
    """The weights of one scheduler process, and whether all that is cached was made by them.

    `identity` is read by SGLang's storage threads; everything else runs on the scheduler's. It is
    None from the moment the weights may change until the caches have been emptied and the new ones
    are known: L3 then finds nothing and takes nothing.
    """

    def __init__(self) -> None:
        self.identity: str | None = None
        self._runner: Any = None
        self._updater: Any = None
        self._of_caches: str | None = None
        """The weights when the caches were empty last, or at the start."""
        self._changed = False
        """Whether they may have changed since."""
        self._wanted = False
        """Whether an L3 was ever attached; without one nothing is computed."""

    def loaded(self, runner: Any) -> None:
        """A model runner has loaded its weights; the one of a draft model is another's."""
        if not runner.is_draft_worker:
            self._runner = runner

    def attached(self) -> None:
        """An L3 is being attached, on all ranks at once.

        Raises
        ------
        HiQCacheError
            The weights could not be read: there would be nothing to name pages by.
        """
        self._wanted = True
        if self._changed or not self._here():
            self._warn()
        elif self.identity is None:
            self._of_caches = self.identity = self._compute()
            if self.identity is None:
                raise HiQCacheError(
                    "the model's weights cannot be read, so that L3 could not tell its pages from "
                    "those of other weights (the log says why): run without "
                    "--hicache-storage-backend"
                )

    def caches_emptied(self) -> None:
        """L1 and L2 were emptied and SGLang's storage threads have ended what they did."""
        if self._changed:
            known = self._wanted and self._in_step() and self._here()
            self._of_caches = self._compute() if known else None
            self._changed = self._in_session()
            self.identity = None if self._changed else self._of_caches

    def updating(self, original: Callable[..., Any], updater: Any, *args: Any) -> Any:
        """Around every call of SGLang's weight updater that may change a parameter."""
        self.identity, self._changed, self._updater = None, True, updater
        try:
            return original(updater, *args)
        finally:
            # An update that empties the caches is done by now; one that changed nothing is undone.
            if self._changed and self._wanted and not self._in_session():
                found = self._compute() if self._in_step() and self._here() else None
                if found is not None and found == self._of_caches:
                    self.identity, self._changed = found, False
                else:
                    self._warn()

    def _in_session(self) -> bool:
        """Between begin and end of an update a trainer may write into GPU memory by itself."""
        return self._updater is not None and self._updater._session is not None

    @staticmethod
    def _in_step() -> bool:
        """Whether every rank empties its caches and updates its weights at the same call."""
        parallel = get_parallel()
        return bool(parallel.pp_size == 1 and parallel.attn_dp_size == 1)

    def _here(self) -> bool:
        """Whether the weights lie on the device; `/release_memory_occupation` takes them away."""
        return self._updater is None or GPU_MEMORY_TYPE_WEIGHTS not in self._updater.offload_tags

    def _own(self) -> str | None:
        try:
            config = self._runner.model_config.hf_config.to_dict()
            return checksum(self._runner.model, config)
        except Exception:
            logger.exception("HiQCache: the model's weights cannot be read")
            return None

    def _compute(self) -> str | None:
        """The identity of what is on the devices now; None if a rank cannot read its part."""
        begin = time.perf_counter()
        # A layer's KV depends on what every rank made of the layers before it.
        ranks: list[str | None] = [self._own()]
        if torch.distributed.is_initialized():
            group = get_parallel().world_group.cpu_group
            own, ranks = ranks[0], [None] * torch.distributed.get_world_size(group)
            torch.distributed.all_gather_object(ranks, own, group)
        if None in ranks:
            return None
        found = hashlib.sha256(json.dumps(ranks).encode()).hexdigest()[:IDENTITY_LETTERS]
        seconds = time.perf_counter() - begin
        logger.info("HiQCache: L3's keys name the weights %s, read in %.3f s", found, seconds)
        return found

    def _warn(self) -> None:
        logger.warning(
            "HiQCache: the weights may have changed since L1 and L2 were emptied last: L3 is left "
            "alone until they are (/flush_cache)%s",
            "" if self._in_step() else " and L3 is attached again",
        )
