"""The model in Hugging Face transformers, its KV cache passed through a codec. No server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hiqcache.errors import UsageError
from hiqcache.lab.quality.variant import Variant

Layers = list[tuple[Tensor, Tensor]]
"""K and V of each layer, `[1, heads, tokens, head_dim]`."""

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
        return [(layer.keys, layer.values) for layer in cache.layers]

    @torch.inference_mode()
    def restore(self, computed: Layers, variant: Variant) -> Layers:
        """The cache as attention reads it: rounded to BF16, and after its way through L2."""
        dtype = self.model.dtype
        return [
            (
                variant.pass_through(keys.bfloat16(), "k", index).to(dtype),
                variant.pass_through(values.bfloat16(), "v", index).to(dtype),
            )
            for index, (keys, values) in enumerate(computed)
        ]

    @torch.inference_mode()
    def score(self, restored: Layers, last: int, continuation: Sequence[int]) -> Tensor:
        """Log probabilities at each position of a continuation, teacher-forced.

        Parameters
        ----------
        restored
            The prefix's cache.
        last
            The prefix's last token: it is computed again, as SGLang does after a hit.

        Returns
        -------
        Tensor
            `[positions, vocabulary]` float64: what is compared differs by far less than a
            float32 sum over a vocabulary is off.
        """
        ids = self._ids([last, *continuation[:-1]])
        logits = self.model(ids, past_key_values=_cache(restored)).logits
        return torch.log_softmax(logits[0].double(), -1)

    @torch.inference_mode()
    def answer(self, restored: Layers, suffix: Sequence[int], new_tokens: int) -> list[int]:
        """The most likely tokens after the cache and `suffix`, one by one, without an end.

        Parameters
        ----------
        suffix
            What is computed before the first of them: the prefix's last token, then a question.
        """
        cache = _cache(restored)
        step = list(suffix)
        tokens: list[int] = []
        for _ in range(new_tokens):
            output = self.model(self._ids(step), past_key_values=cache, logits_to_keep=1)
            step = [int(output.logits[0, -1].argmax())]
            tokens += step
        return tokens

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)], device=self.device)


def _cache(layers: Layers) -> Any:
    """Transformers' cache of all tokens but the last; it never writes into the given tensors."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for index, (keys, values) in enumerate(layers):
        cache.update(keys[:, :, :-1], values[:, :, :-1], index)
    return cache


def equal(left: Layers, right: Layers) -> bool:
    """Whether two caches hold the same values."""
    return all(
        torch.equal(a, b)
        for one, two in zip(left, right, strict=True)
        for a, b in zip(one, two, strict=True)
    )
