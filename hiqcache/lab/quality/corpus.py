"""The prompts that ship: cuts of the public-domain documents, with tasks written into them.

`hiqcache/lab/workload/texts/README.md` says where the documents come from. 43 documents of about
1,000 tokens hold less text than 200 prompts take: a passage appears in several prompts, each
time behind other text and at another position, so its KV is different each time. Intervals
are taken over prompts and do not know that; they may be a little too narrow for it.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from hiqcache.lab.quality.prompt import CONTINUATION_TOKENS, Encode, Prompt
from hiqcache.lab.quality.tasks import KINDS, Task, make_task
from hiqcache.lab.workload.documents import load_documents

SEED = 0
SHORTEST, LONGEST = 500, 2000
RESERVE = 1.1
"""Text in reserve: pieces joined have fewer tokens than the pieces one by one."""

PIECE = re.compile(r"[^\n]*?[.;] |[^\n]*\n")
"""A sentence with its space, or the rest of a line with its end."""


def make_prompts(
    encode: Encode, count: int, shortest: int = SHORTEST, longest: int = LONGEST
) -> list[Prompt]:
    """`count` prompts with prefixes of `shortest` to `longest` tokens, the same every time.

    A prefix is a numbered heading, which keeps any two from sharing a prefix in the cache, and
    one document from a random sentence on, followed by other documents. All documents come
    first in turn.
    """
    rng = random.Random(SEED)
    texts = [document.text for document in load_documents()]
    turns: Counter[str] = Counter()
    prompts = []
    for index in range(count):
        kind = KINDS[index % len(KINDS)]
        task = make_task(kind, turns[kind], rng)
        turns[kind] += 1
        first = index % len(texts)
        others = [text for number, text in enumerate(texts) if number != first]
        order = [texts[first], *rng.sample(others, len(others))]
        heading = f"Extract {index + 1} of {count} from a country handbook\n\n"
        tokens = rng.randint(shortest, longest)
        text = heading + _body(_pieces(order, rng), task, tokens - len(encode(heading)), encode)
        ids = encode(text)[: tokens + CONTINUATION_TOKENS]
        prompts.append(
            Prompt(
                name=f"{kind}-{index + 1:03}",
                kind=kind,
                prefix=tuple(ids[:tokens]),
                continuation=tuple(ids[tokens:]),
                question=tuple(encode(task.question)) if task.question else (),
                answer=task.answer,
                depth=task.depth,
            )
        )
    return prompts


def _pieces(texts: Sequence[str], rng: random.Random) -> Iterator[str]:
    """Sentences and lines of the texts; the first text begins at a random one."""
    skip = rng.randrange(len(PIECE.findall(texts[0])) // 2)
    for text in texts:
        yield from PIECE.findall(f"{text}\n\n")[skip:]
        skip = 0


def _body(pieces: Iterator[str], task: Task, tokens: int, encode: Encode) -> str:
    """At least `tokens` and a continuation of text, the task's lines at their depths."""
    room = tokens - sum(len(encode(text)) for _, text in task.insert)
    waiting = sorted(task.insert)
    parts: list[str] = []
    written = 0
    for piece in pieces:
        while waiting and written >= waiting[0][0] * room:
            parts.append(waiting.pop(0)[1])
        if written >= RESERVE * (room + CONTINUATION_TOKENS):
            break
        parts.append(piece)
        written += len(encode(piece))
    return "".join(parts)
