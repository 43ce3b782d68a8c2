"""A prefix tree over two tiers, as SGLang 0.5.23 keeps it; each node is a block of tokens.

What is modelled, from `sglang/srt/mem_cache/unified_cache/unified_tree_core.py` (how far that
was checked: docs/hicache-internals.md):

- L1's victim is the least recently used leaf, a parent after its last child in L1.
- `write_back` copies a victim to L2 when it leaves L1; `write_through` copies a block when it is
  first inserted and loses it from L1 without a copy if L2 had no room then.
- L2's victim is the least recently used leaf that is in L2 alone. Under `write_back` copies of
  what is also in L1 go before it: first of blocks that stay in L1, then of blocks that are about
  to leave it; what is being restored is never a victim.
- What comes back from L2 keeps its copy there; fewer than 10 tokens are not restored.

Two ordered dictionaries hold the order of use. A touch moves a path's leaf first and its root
last, so a node always stands behind its descendants, and the front of either is a leaf: each
step is constant time, whatever the number of tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

LOAD_BACK_THRESHOLD = 10
"""`load_back_threshold`, a constant of SGLang's `init_hicache`."""

Block = tuple[Hashable, int]
"""A block's hash and its tokens; the hash needs to be unique among its siblings only."""


class Node:
    """One block. `locks` counts the requests in flight that hold it in L1."""

    __slots__ = ("children", "host", "key", "l1", "locks", "parent", "tokens")

    def __init__(self, parent: Node | None, key: Hashable, tokens: int) -> None:
        self.parent = parent
        self.key = key
        self.tokens = tokens
        self.children: dict[Hashable, Node] = {}
        self.l1 = False
        self.host = False
        self.locks = 0


class Tree:
    """L1 and L2 of one rank.

    Parameters
    ----------
    l1_tokens, l2_tokens
        Tokens that each tier holds; 0 for no L2.
    write_back
        The policy; `write_through` otherwise.
    """

    def __init__(self, l1_tokens: int, l2_tokens: int, *, write_back: bool) -> None:
        self.root = Node(None, None, 0)
        self.l1_free = l1_tokens
        self.l2_free = l2_tokens
        self.l2_tokens = l2_tokens
        self.write_back = write_back
        self.evictable = 0
        self.backed_up = 0
        self._l1: OrderedDict[Node, None] = OrderedDict()
        self._l2: OrderedDict[Node, None] = OrderedDict()
        self._both: OrderedDict[Node, None] = OrderedDict()
        self._loading: list[Node] = []

    def match(self, blocks: Sequence[Block]) -> list[Node]:
        """The longest path of blocks that either tier holds; touches it."""
        path = []
        node = self.root
        for key, _ in blocks:
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        self._touch(path)
        return path

    def lock(self, path: Sequence[Node]) -> None:
        """Hold the part of a path that is in L1 there."""
        for node in path:
            if not node.locks and node.l1:
                del self._l1[node]
                self.evictable -= node.tokens
            node.locks += 1

    def unlock(self, path: Sequence[Node]) -> None:
        """Let a request's path go, as just used."""
        for node in reversed(path):
            node.locks -= 1
            if not node.locks and node.l1:
                self._l1[node] = None
                self.evictable += node.tokens

    def restore(self, path: Sequence[Node]) -> bool:
        """Bring the part of a locked path that is in L2 alone back to L1; false if it stays."""
        missing = [node for node in path if not node.l1]
        tokens = sum(node.tokens for node in missing)
        if tokens < LOAD_BACK_THRESHOLD or not self.make_room(tokens):
            return False
        self.l1_free -= tokens
        for node in missing:
            node.l1 = True
            del self._l2[node]
        self._loading += missing
        return True

    def acknowledge(self) -> None:
        """What is being restored has arrived: its copies in L2 may now be given up."""
        for node in self._loading:
            self._both[node] = None
        self._loading.clear()

    def insert(self, path: list[Node], blocks: Sequence[Block]) -> None:
        """Append computed blocks, whose L1 slots are taken already, to a locked path, locked."""
        for key, tokens in blocks:
            parent = path[-1] if path else self.root
            node = parent.children.get(key)
            if node is None:
                node = parent.children[key] = Node(parent, key, tokens)
            if not node.l1:
                node.l1 = True
                if node.host:  # recomputed instead of restored
                    del self._l2[node]
                    self._both[node] = None
            else:
                # Another request put it there meanwhile: its slots stay, these are freed.
                self.l1_free += tokens
                if not node.locks:
                    del self._l1[node]
                    self.evictable -= node.tokens
            node.locks += 1
            path.append(node)
            if not self.write_back and not node.host and (parent.host or parent is self.root):
                self._copy(node)

    def make_room(self, tokens: int) -> bool:
        """Evict from L1 until so many tokens are free; false if they cannot be."""
        if self.l1_free + self.evictable < tokens:
            return False
        while self.l1_free < tokens:
            self._evict(next(iter(self._l1)))
        return True

    def _touch(self, path: Sequence[Node]) -> None:
        for node in reversed(path):
            if not node.l1:
                self._l2.move_to_end(node)
            elif not node.locks:
                self._l1.move_to_end(node)

    def _evict(self, node: Node) -> None:
        del self._l1[node]
        self.evictable -= node.tokens
        self.l1_free += node.tokens
        node.l1 = False
        if node.host:
            self._both.pop(node, None)
        elif not self.write_back or not self._copy(node):
            self._drop(node)
            return
        self._both.pop(node, None)
        self._l2[node] = None

    def _copy(self, node: Node) -> bool:
        """Copy a block to L2 whole, or not at all."""
        if not self.l2_tokens or not self._make_room_in_l2(node.tokens):
            return False
        self.l2_free -= node.tokens
        self.backed_up += node.tokens
        node.host = True
        if node.l1:
            self._both[node] = None
        return True

    def _make_room_in_l2(self, tokens: int) -> bool:
        if self.write_back and self.l2_free < tokens:
            self._reclaim_copies(tokens)
        while self.l2_free < tokens and self._l2:
            node = next(iter(self._l2))
            if node.children or node.locks:
                return False  # only what a running request needs is left
            self._forget(node)
        return self.l2_free >= tokens

    def _reclaim_copies(self, tokens: int) -> None:
        for spare_leaves in (True, False):
            for node in list(self._both):
                if self.l2_free >= tokens:
                    return
                if spare_leaves and self._is_l1_leaf(node):
                    continue
                del self._both[node]
                node.host = False
                self.l2_free += node.tokens

    @staticmethod
    def _is_l1_leaf(node: Node) -> bool:
        return not node.locks and not any(child.l1 for child in node.children.values())

    def _drop(self, node: Node) -> None:
        """Lose a block that neither tier holds, with what L2 holds below it."""
        for child in list(node.children.values()):
            self._drop(child)
        if node.host:
            self._forget(node)
        elif node.parent is not None:
            del node.parent.children[node.key]

    def _forget(self, node: Node) -> None:
        del self._l2[node]
        node.host = False
        self.l2_free += node.tokens
        assert node.parent is not None
        del node.parent.children[node.key]
