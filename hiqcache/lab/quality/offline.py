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
    REFERENCE,
    Answered,
    Compared,
    Read,
    compare_answers,
    compare_readings,
)
from hiqcache.lab.quality.twin import Layers, Twin, equal
from hiqcache.lab.quality.variant import Variant, profile, whole

Decode = Callable[[Sequence[int]], str]
UNROUNDED = "KV not rounded to BF16"
L1 = Variant("L1", NOISE)
AT_ONCE = 8
"""Caches that are read side by side: what is expected of a large vocabulary takes memory."""


@dataclass(frozen=True, kw_only=True)
class OfflineSpec:
    """What is run.

    Parameters
    ----------
    codecs
        With none, the noise floor alone is measured.
    profile_prompts
        How many of the prompts are also run with each layer of each side alone.
    profile_codec
        Whose error the profile and the rows of K alone and V alone show; None for neither.
    per_head
        Each KV head of each layer alone as well.
    answers
        How many of the prompts are also answered freely, token by token.
    """

    prompts: Sequence[Prompt]
    codecs: Sequence[Codec]
    profile_prompts: int = 0
    profile_codec: Codec | None = None
    per_head: bool = False
    answers: int = 0


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
    """One prompt: its prefix computed once, and every version of its cache read beside L1's."""

    def __init__(
        self, twin: Twin, prompt: Prompt, spec: OfflineSpec, decode: Decode, answered: bool
    ) -> None:
        self.twin, self.prompt, self.spec, self.decode = twin, prompt, spec, decode
        self.answers = answered
        self.computed = twin.read_prefix(prompt.prefix)
        self.reference = twin.restore(self.computed, L1)

    def rows(self, profiled: bool) -> Iterator[Compared]:
        spec = self.spec
        versions = [
            (variant, self.twin.restore(self.computed, variant))
            for variant in whole(spec.codecs, spec.profile_codec)
        ]
        chunked = self.twin.read_prefix(self.prompt.prefix, OTHER_CHUNK)
        versions.append((Variant(NOISE_FLOOR, NOISE), self.twin.restore(chunked, L1)))
        if self.twin.model.dtype == torch.float32:
            versions.append((Variant(UNROUNDED, NOISE), self.computed))
        yield from self._compare(versions)
        if profiled and spec.profile_codec is not None:
            layers, heads = self.computed[0].shape[:2]
            variants = profile(spec.profile_codec, layers, heads, spec.per_head)
            for start in range(0, len(variants), AT_ONCE):
                some = variants[start : start + AT_ONCE]
                yield from self._compare(
                    [(variant, self.twin.restore(self.computed, variant)) for variant in some]
                )

    def _compare(self, versions: Sequence[tuple[Variant, Layers]]) -> Iterator[Compared]:
        """A row for each version; equal caches are read once, and L1's in the same batch."""
        distinct = [self.reference]
        places = []
        for _, layers in versions:
            same = (place for place, other in enumerate(distinct) if equal(other, layers))
            place = next(same, len(distinct))
            if place == len(distinct):
                distinct.append(layers)
            places.append(place)
        last = self.prompt.prefix[-1]
        reads = self._reads(distinct) if self.prompt.continuation else None
        replies = None
        if self.answers and any(_is_answered(variant) for variant, _ in versions):
            suffix = (last, *self.prompt.question)
            replies = self.twin.answer(distinct, suffix, self.prompt.new_tokens)
        for (variant, _), place in zip(versions, places, strict=True):
            read = None if reads is None else reads[place]
            answered = None
            if replies is not None and _is_answered(variant):
                answered = self._answered(replies[0], replies[place])
            yield self._row(variant, read, answered)

    def _reads(self, caches: Sequence[Layers]) -> list[Read]:
        """Each cache's reading beside that of the first."""
        reads: list[Read] = []
        expected = None
        for start in range(0, len(caches), AT_ONCE):
            some = caches[start : start + AT_ONCE]
            scored = self.twin.score(some, self.prompt.prefix[-1], self.prompt.continuation)
            expected = scored[0] if expected is None else expected
            reads += [self._read(expected, one) for one in scored]
        return reads

    def _read(self, expected: Tensor, scored: Tensor) -> Read:
        top = compare_readings(_top(self.prompt, expected), _top(self.prompt, scored))
        whole_kl = float((expected.exp() * (expected - scored)).sum())
        return replace(top, kl=whole_kl, kl_top=top.kl)

    def _answered(self, reply: list[int], tokens: list[int]) -> Answered:
        is_right = self.prompt.is_right
        right = is_right(self.decode(reply)), is_right(self.decode(tokens))
        return compare_answers(reply, tokens, right)

    def _row(self, variant: Variant, read: Read | None, answered: Answered | None) -> Compared:
        prompt = self.prompt
        return Compared(
            comparison=variant.name,
            role=variant.role,
            prompt=prompt.name,
            kind=prompt.kind,
            depth=prompt.depth,
            prefix_tokens=len(prompt.prefix),
            codec=variant.codec,
            sides="".join(variant.sides) if variant.through else None,
            layer=variant.layer,
            head=variant.head,
            read=read,
            answered=answered,
        )


def _is_answered(variant: Variant) -> bool:
    return variant.role in (CODEC, REFERENCE, NOISE) and variant.name != UNROUNDED


def _top(prompt: Prompt, logprobs: Tensor) -> Scored:
    values, ids = logprobs.topk(TOP)
    read = torch.tensor(prompt.continuation, device=logprobs.device).unsqueeze(1)
    return Scored(
        logprobs.gather(1, read).squeeze(1).cpu().numpy(),
        ids.cpu().numpy().astype(np.int32),
        values.cpu().numpy().astype(np.float32),
    )
