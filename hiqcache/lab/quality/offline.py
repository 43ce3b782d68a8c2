"""The offline run: every prompt under every variant of the twin's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hiqcache.codec.base import Codec
from hiqcache.lab.quality.arms import OTHER_CHUNK
from hiqcache.lab.quality.distribution import TOP, Scored
from hiqcache.lab.quality.prompt import Prompt
from hiqcache.lab.quality.row import (
    CODEC,
    NOISE,
    NOISE_FLOOR,
    PART,
    PROFILE,
    Compared,
    compare_answers,
    compare_readings,
)
from hiqcache.lab.quality.twin import Layers, Twin, equal
from hiqcache.lab.quality.variant import Variant, profile, whole

Decode = Callable[[Sequence[int]], str]
UNROUNDED = "KV not rounded to BF16"
L1 = Variant("L1", None)


@dataclass(frozen=True, kw_only=True)
class OfflineSpec:
    """What is run.

    Parameters
    ----------
    profile_prompts
        How many of the prompts are also run with each layer of each side alone.
    profile_codec
        Whose error the profile and the rows of K alone and V alone show.
    per_head
        Each KV head of each layer alone as well.
    answers
        How many of the prompts are also answered freely, token by token.
    """

    prompts: Sequence[Prompt]
    codecs: Sequence[Codec]
    profile_prompts: int
    profile_codec: Codec
    per_head: bool
    answers: int


def run_offline(twin: Twin, spec: OfflineSpec, decode: Decode) -> Iterator[Compared]:
    """One row for each prompt and variant, each compared with the prompt's own L1.

    Parameters
    ----------
    decode
        From token ids to text, to look for right answers.
    """
    for number, prompt in enumerate(spec.prompts):
        case = _Case(twin, prompt, spec, decode, number < spec.answers)
        yield from case.rows(number < spec.profile_prompts)


class _Case:
    """One prompt: its prefix computed once, and the reference that all variants share."""

    def __init__(
        self, twin: Twin, prompt: Prompt, spec: OfflineSpec, decode: Decode, answered: bool
    ) -> None:
        self.twin, self.prompt, self.spec, self.decode = twin, prompt, spec, decode
        self.computed = twin.read_prefix(prompt.prefix)
        self.answered: list[tuple[Layers, list[int]]] = []
        reference = twin.restore(self.computed, L1)
        self.expected = self._score(reference)
        self.reply = self._answer(reference) if answered else None

    def rows(self, profiled: bool) -> Iterator[Compared]:
        for variant in whole(self.spec.codecs, self.spec.profile_codec):
            restored = self.twin.restore(self.computed, variant)
            yield self._row(variant, CODEC if variant.complete else PART, restored)
        chunked = self.twin.read_prefix(self.prompt.prefix, OTHER_CHUNK)
        yield self._row(Variant(NOISE_FLOOR, None), NOISE, self.twin.restore(chunked, L1))
        if self.twin.model.dtype == torch.float32:
            yield self._row(Variant(UNROUNDED, None), NOISE, self.computed)
        if profiled:
            layers, heads = len(self.computed), self.computed[0][0].shape[1]
            for variant in profile(self.spec.profile_codec, layers, heads, self.spec.per_head):
                yield self._row(variant, PROFILE, self.twin.restore(self.computed, variant))

    def _row(self, variant: Variant, role: str, restored: Layers) -> Compared:
        prompt = self.prompt
        read, answered = None, None
        scored = self._score(restored)
        if scored is not None and self.expected is not None:
            top = compare_readings(_top(prompt, self.expected), _top(prompt, scored))
            whole_kl = float((self.expected.exp() * (self.expected - scored)).sum())
            read = replace(top, kl=whole_kl, kl_top=top.kl)
        if self.reply is not None and role in (CODEC, NOISE) and variant.name != UNROUNDED:
            tokens = self._answer(restored)
            right = prompt.is_right(self.decode(self.reply)), prompt.is_right(self.decode(tokens))
            answered = compare_answers(self.reply, tokens, right)
        return Compared(
            comparison=variant.name,
            role=role,
            prompt=prompt.name,
            kind=prompt.kind,
            depth=prompt.depth,
            prefix_tokens=len(prompt.prefix),
            codec=variant.codec.name if variant.codec else None,
            sides="".join(variant.sides) if variant.codec else None,
            layer=variant.layer,
            head=variant.head,
            read=read,
            answered=answered,
        )

    def _score(self, restored: Layers) -> Tensor | None:
        if not self.prompt.continuation:
            return None
        return self.twin.score(restored, self.prompt.prefix[-1], self.prompt.continuation)

    def _answer(self, restored: Layers) -> list[int]:
        """Equal caches have equal answers: each is computed once."""
        for layers, tokens in self.answered:
            if equal(layers, restored):
                return tokens
        suffix = (self.prompt.prefix[-1], *self.prompt.question)
        tokens = self.twin.answer(restored, suffix, self.prompt.new_tokens)
        self.answered.append((restored, tokens))
        return tokens


def _top(prompt: Prompt, logprobs: Tensor) -> Scored:
    values, ids = logprobs.topk(TOP)
    read = torch.tensor(prompt.continuation, device=logprobs.device).unsqueeze(1)
    return Scored(
        logprobs.gather(1, read).squeeze(1).cpu().numpy(),
        ids.cpu().numpy().astype(np.int32),
        values.cpu().numpy().astype(np.float32),
    )
