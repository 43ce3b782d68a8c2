"""The model in Hugging Face transformers, its KV cache passed through a codec. No server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hiqcache.errors import UsageError
from hiqcache.lab.quality.variant import Variant

Layers = tuple[Tensor, Tensor]
"""K and V of all layers, `[layers, heads, tokens, head_dim]` each."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Twin:
    """A causal model that reads a prefix once and then anything after any version of its cache.

    The cache of a prefix is rounded to BF16, which is what L1 holds; a codec turns it into
    records and back, as a backup and a restore do. What follows is computed in `dtype`: in
    float32 nothing but the codec separates two variants.

    Parameters
    ----------
    model
        A Hugging Face id or a folder.
    dtype
        `float32` or `bfloat16`.
    device
        A torch device such as `cpu` or `cuda`.
    """

    def __init__(self, model: str, dtype: str, device: str) -> None:
        from transformers import AutoModelForCausalLM

        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[dtype])
        except (OSError, ValueError) as error:
            raise UsageError(f"--model {model} cannot be loaded: {error}") from error
        self.model: Any = loaded.to(device).eval()
        self.device = device
        if device == "cuda":
            # TF32 would be no float32: it keeps 10 bits of a product's factors.
            torch.backends.cuda.matmul.allow_tf32 = False

    @torch.inference_mode()
    def read_prefix(self, prefix: Sequence[int], chunk: int | None = None) -> Layers:
        """Compute a prefix, in chunks of `chunk` tokens or at once; its KV in `dtype`."""
        from transformers import DynamicCache

        cache: Any = DynamicCache(config=self.model.config)
        size = chunk or len(prefix)
        for start in range(0, len(prefix), size):
            ids = self._ids(prefix[start : start + size])
            self.model(ids, past_key_values=cache, logits_to_keep=1)
        for layer in cache.layers:
            if layer.keys.shape[-2] != len(prefix):
                raise UsageError(
                    f"the model keeps {layer.keys.shape[-2]} of {len(prefix)} tokens in a layer: "
                    f"HiQCache takes models with full attention in every layer"
                )
        keys = torch.cat([layer.keys for layer in cache.layers])
        return keys, torch.cat([layer.values for layer in cache.layers])

    @torch.inference_mode()
    def restore(self, computed: Layers, variant: Variant) -> Layers:
        """The cache as attention reads it: rounded to BF16, and after its way through L2."""
        keys, values = (part.bfloat16() for part in computed)
        dtype = self.model.dtype
        return (
            variant.pass_through(keys, "k").to(dtype),
            variant.pass_through(values, "v").to(dtype),
        )

    @torch.inference_mode()
    def score(self, caches: Sequence[Layers], last: int, continuation: Sequence[int]) -> Tensor:
        """Log probabilities at each position of a continuation, teacher-forced.

        Parameters
        ----------
        caches
            The prefix's cache in several versions, which are read side by side.
        last
            The prefix's last token: it is computed again, as SGLang does after a hit.

        Returns
        -------
        Tensor
            `[caches, positions, vocabulary]` float64: what is compared differs by far less than a
            float32 sum over a vocabulary is off.
        """
        ids = self._ids([last, *continuation[:-1]], len(caches))
        logits = self.model(ids, past_key_values=_cache(caches)).logits
        return torch.log_softmax(logits.double(), -1)

    @torch.inference_mode()
    def answer(
        self, caches: Sequence[Layers], suffix: Sequence[int], new_tokens: int
    ) -> list[list[int]]:
        """The most likely tokens after each cache and `suffix`, one by one, without an end.

        Parameters
        ----------
        suffix
            What is computed before the first of them: the prefix's last token, then a question.
        """
        cache = _cache(caches)
        step = self._ids(suffix, len(caches))
        tokens: list[Tensor] = []
        for _ in range(new_tokens):
            output = self.model(step, past_key_values=cache, logits_to_keep=1)
            step = output.logits[:, -1].argmax(-1, keepdim=True)
            tokens.append(step)
        answers: list[list[int]] = torch.cat(tokens, 1).tolist()
        return answers

    def _ids(self, tokens: Sequence[int], times: int = 1) -> Tensor:
        return torch.tensor([list(tokens)] * times, device=self.device)


def _cache(caches: Sequence[Layers]) -> Any:
    """Transformers' cache of all tokens but the last; it never writes into the given tensors."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for layer in range(len(caches[0][0])):
        keys, values = (
            torch.stack([version[side][layer, :, :-1] for version in caches]) for side in (0, 1)
        )
        cache.update(keys, values, layer)
    return cache


def equal(left: Layers, right: Layers) -> bool:
    """Whether two caches hold the same values."""
    return all(torch.equal(one, two) for one, two in zip(left, right, strict=True))
