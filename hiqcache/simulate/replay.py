"""Requests in flight over the tree: who is admitted together, what hits, what is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from hiqcache.simulate.tree import Block, Node, Tree

REFUSED_FROM = 6
"""A prompt of L1's tokens less these is refused (`max_req_input_len`)."""

ANSWER_ROOM = 2
"""Tokens of L1 that a prompt and its answer leave free (`max_req_len - input_len - 1`)."""

CHUNK = 8192
"""SGLang's `--chunked-prefill-size` on GPUs of 60 GB and more: tokens computed in one batch."""


@dataclass(frozen=True)
class Request:
    """One request of a trace: its prompt as blocks, and the tokens of its answer."""

    blocks: tuple[Block, ...]
    output: int = 0


@dataclass(frozen=True)
class Prediction:
    """What a replay found; tokens, but for the first three.

    Parameters
    ----------
    requests
        All of the trace.
    refused
        Those whose prompt a server with this L1 refuses; their tokens are counted nowhere.
    shortened
        Those whose answer such a server cuts.
    """

    requests: int
    refused: int
    shortened: int
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
    chunk: int = CHUNK,
    overlap: bool = True,
) -> Prediction:
    """Replay requests in order, a fixed number sent at a time, as a closed loop of clients does.

    Waiting requests are admitted in order into one prefill batch while its computed tokens stay
    within `chunk`, which cuts the last one, and L1 has room for prompts and answers beside those
    in flight. An idle server begins with the first request alone. What a batch computes is in
    the tree once it ends, so that two prompts of one batch both compute a prefix that is new to
    both; what it restores is there at once. With `overlap`, SGLang's default, the next batch is
    chosen while the one before is computed, and misses what that one brings. Batches go before
    decoding, and all running requests decode together, a token a step. Time in seconds is not
    modelled. Prompts that L1 cannot hold are refused and answers cut, as a server does.
    """
    return _Replay(
        iter(requests), l1_tokens, l2_tokens, write_back, concurrency, chunk, overlap
    ).run()


def l1_for_all(requests: Iterable[Request]) -> int:
    """The smallest L1 in tokens that refuses none of the requests and cuts no answer."""
    prompts = ((sum(tokens for _, tokens in it.blocks), it.output) for it in requests)
    return max(
        max(prompt + REFUSED_FROM + 1, prompt + output + ANSWER_ROOM) for prompt, output in prompts
    )


@dataclass
class _Entry:
    """An admitted request: tokens left to compute, and computed since its last whole block."""

    request: Request
    path: list[Node]
    left: int
    ready: int = 0


class _Replay:
    def __init__(
        self,
        source: Iterator[Request],
        l1_tokens: int,
        l2_tokens: int,
        write_back: bool,
        concurrency: int,
        chunk: int,
        overlap: bool,
    ) -> None:
        self.source = source
        self.l1_tokens, self.l2_tokens = l1_tokens, l2_tokens
        self.concurrency, self.chunk, self.overlap = concurrency, chunk, overlap
        self.tree = Tree(l1_tokens, l2_tokens, write_back=write_back)
        self.waiting: deque[tuple[Request, int]] = deque()
        self.running: list[tuple[int, int, list[Node], int]] = []
        self.partial: _Entry | None = None
        self.computed: list[_Entry] = []
        self.alone = True
        self.step = self.count = self.number = 0
        self.refused = self.shortened = 0
        self.prompt_tokens = self.l1_hits = self.l2_hits = 0

    def run(self) -> Prediction:
        self._arrive()
        while self._in_flight():
            if not self._prefill():
                self._decode()
            self._arrive()
        tree = self.tree
        return Prediction(
            self.count,
            self.refused,
            self.shortened,
            self.prompt_tokens,
            self.l1_hits,
            self.l2_hits,
            tree.backed_up,
            self.l2_tokens - tree.l2_free,
        )

    def _in_flight(self) -> int:
        return (
            len(self.waiting) + len(self.running) + len(self.computed) + (self.partial is not None)
        )

    def _arrive(self) -> None:
        busy = self._in_flight() > 0
        while self._in_flight() < self.concurrency:
            request = next(self.source, None)
            if request is None:
                return
            self.count += 1
            prompt = sum(tokens for _, tokens in request.blocks)
            if prompt >= self.l1_tokens - REFUSED_FROM:
                self.refused += 1
                continue
            room = self.l1_tokens - prompt - ANSWER_ROOM
            if request.output > room:
                self.shortened += 1
                request = replace(request, output=room)
            self.waiting.append((request, prompt))
            self.alone = not busy

    def _prefill(self) -> bool:
        """Admit a batch and compute it; false if there was nothing to do."""
        batch = [self.partial] if self.partial else []
        budget = self.chunk - sum(entry.left for entry in batch)
        while self.waiting and budget > 0 and not (self.alone and batch):
            request, prompt = self.waiting[0]
            path = self.tree.match(request.blocks)
            self.tree.lock(path)
            entry = self._admit(request, path, prompt)
            if entry is None:
                self.tree.unlock(path)
                break
            self.waiting.popleft()
            budget -= entry.left
            batch.append(entry)
        self.alone, self.partial = False, None
        ended, self.computed = self.computed, []
        for entry in ended:
            self._end(entry)
        self.tree.acknowledge()
        for entry in batch:
            # Only the last one can be cut; the next batch goes on with it.
            share = entry.left if entry is not batch[-1] else entry.left + min(0, budget)
            self._compute(entry, share)
        return bool(batch or ended)

    def _compute(self, entry: _Entry, tokens: int) -> None:
        """Compute so many tokens of a prompt; a block enters the tree when half of it is there."""
        entry.left -= tokens
        entry.ready += tokens
        blocks = entry.request.blocks
        if not entry.left:
            if self.overlap:
                self.computed.append(entry)
            else:
                self._end(entry)
            return
        self.partial = entry
        # A later prompt hits what a chunk has computed of a block; here, all of it or nothing.
        while len(entry.path) < len(blocks) and 2 * entry.ready >= blocks[len(entry.path)][1]:
            block = blocks[len(entry.path)]
            entry.ready -= block[1]
            self.tree.insert(entry.path, (block,))

    def _end(self, entry: _Entry) -> None:
        """The result of a prefill: the prompt is in the tree, and the request decodes."""
        self.tree.insert(entry.path, entry.request.blocks[len(entry.path) :])
        end = self.step + max(0, entry.request.output - 1)
        self.number += 1
        heappush(self.running, (end, self.number, entry.path, entry.request.output))

    def _admit(self, request: Request, path: list[Node], prompt: int) -> _Entry | None:
        """Take L1 for a matched request; None if there is no room."""
        tree, output = self.tree, request.output
        in_l1 = sum(node.tokens for node in path if node.l1)
        if tree.l1_free + tree.evictable < prompt - in_l1 + output:
            return None
        in_l2 = sum(node.tokens for node in path) - in_l1
        if in_l2 and not tree.restore(path):
            kept = [node for node in path if node.l1]
            tree.unlock(path[len(kept) :])
            path, in_l2 = kept, 0
        computed = prompt - in_l1 - in_l2
        tree.make_room(computed + output)
        tree.l1_free -= computed + output
        self.prompt_tokens += prompt
        # A prefill computes at least one token.
        whole = 0 if computed else 1
        self.l1_hits += in_l1 - (0 if in_l2 else whole)
        self.l2_hits += in_l2 - (whole if in_l2 else 0)
        return _Entry(request, path, max(1, computed))

    def _decode(self) -> None:
        """Go on to the step in which the next requests end."""
        self.step = self.running[0][0]
        while self.running and self.running[0][0] == self.step:
            _, number, path, output = heappop(self.running)
            if output:
                self.tree.insert(path, (((-1, number), output),))
            self.tree.unlock(path)
