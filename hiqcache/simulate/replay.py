"""Requests in flight over the tree: who is admitted, what hits, what is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from hiqcache.errors import UsageError
from hiqcache.simulate.tree import Block, Node, Tree


@dataclass(frozen=True)
class Request:
    """One request of a trace: its prompt as blocks, and the tokens of its answer."""

    blocks: tuple[Block, ...]
    output: int = 0


@dataclass(frozen=True)
class Prediction:
    """What a replay found; tokens."""

    requests: int
    prompt_tokens: int
    l1_hit_tokens: int
    l2_hit_tokens: int
    backup_tokens: int
    l2_used_tokens: int

    @property
    def hit_rate(self) -> float:
        return (self.l1_hit_tokens + self.l2_hit_tokens) / max(1, self.prompt_tokens)


def replay(
    requests: Iterable[Request],
    l1_tokens: int,
    l2_tokens: int,
    *,
    write_back: bool,
    concurrency: int,
) -> Prediction:
    """Replay requests in order, a fixed number in flight as long as L1 has room for them.

    A request is admitted when its prompt and answer fit into L1 beside those in flight, whose
    blocks cannot be evicted; the oldest finishes first. Its prompt is in the tree from its
    admission on, its answer from its end on. Prefill in chunks, batches of several prompts that
    miss the same prefix, and time are not modelled.

    Raises
    ------
    UsageError
        A request that L1 cannot hold at all.
    """
    tree = Tree(l1_tokens, l2_tokens, write_back=write_back)
    flight: deque[tuple[list[Node], int, int]] = deque()
    count = prompt_tokens = l1_hits = l2_hits = 0

    def finish() -> None:
        path, output, number = flight.popleft()
        tree.l1_free += output
        if output:
            tree.insert(path, (((-1, number), output),))
        tree.unlock(path)

    for request in requests:
        while len(flight) >= concurrency:
            finish()
        prompt = sum(tokens for _, tokens in request.blocks)
        if prompt + request.output > l1_tokens:
            raise UsageError(
                f"request {count + 1} of the trace has {prompt + request.output:,} tokens, "
                f"expected at most the {l1_tokens:,} of L1"
            )
        path = tree.match(request.blocks)
        tree.lock(path)
        while not _fits(tree, path, prompt, request.output):
            tree.unlock(path)
            finish()
            path = tree.match(request.blocks)
            tree.lock(path)
        in_l1 = sum(node.tokens for node in path if node.l1)
        in_l2 = sum(node.tokens for node in path) - in_l1
        if in_l2 and not tree.restore(path):
            kept = [node for node in path if node.l1]
            tree.unlock(path[len(kept) :])
            path, in_l2 = kept, 0
        tree.make_room(prompt - in_l1 - in_l2 + request.output)
        tree.l1_free -= request.output
        tree.insert(path, request.blocks[len(path) :])
        flight.append((path, request.output, count))
        # A prefill computes at least one token.
        if in_l1 + in_l2 == prompt:
            in_l1, in_l2 = (in_l1 - 1, in_l2) if not in_l2 else (in_l1, in_l2 - 1)
        count += 1
        prompt_tokens += prompt
        l1_hits += in_l1
        l2_hits += in_l2
    while flight:
        finish()
    return Prediction(
        count, prompt_tokens, l1_hits, l2_hits, tree.backed_up, l2_tokens - tree.l2_free
    )


def _fits(tree: Tree, path: list[Node], prompt: int, output: int) -> bool:
    held = sum(node.tokens for node in path if node.l1)
    return tree.l1_free + tree.evictable >= prompt - held + output
