"""How many processes of a host hold an L2: doctor, capacity and the pod's plan all ask here."""

from __future__ import annotations

from dataclasses import dataclass

from hiqcache.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """How SGLang spreads a server over processes; each has an L2 of `--hicache-size` for itself.

    Eight replicas of one rank on one host are 8 processes; `tp=4, pp=2` are 8 as well, of half the
    layers each; `tp=16` over two nodes are 8 on each.

    Parameters
    ----------
    tp, pp, nodes
        `--tp-size`, `--pp-size` and `--nnodes`. With MLA each TP rank keeps a whole copy of the
        rows, which is an L2 of its own all the same.
    replicas
        `--dp-size`: whole models, all on one host.
    attention_groups
        `--attn-dp-size`: groups inside the TP ranks, which split attention heads among fewer.
    """

    tp: int = 1
    pp: int = 1
    nodes: int = 1
    replicas: int = 1
    attention_groups: int = 1

    def __post_init__(self) -> None:
        for name, count in vars(self).items():
            if count < 1:
                raise UsageError(f"{name} must be at least 1, got {count}")
        if self.tp % self.attention_groups:
            raise UsageError(
                f"attention data parallelism {self.attention_groups} does not divide the "
                f"{self.tp} tensor-parallel ranks"
            )

    @property
    def started_together(self) -> int:
        """Processes of a host in one of SGLang's groups, which divide its free memory."""
        return max(1, self.tp * self.pp // self.nodes)

    @property
    def on_a_host(self) -> int:
        """Processes of a host that hold an L2; each needs a GPU."""
        return self.started_together * self.replicas

    @property
    def attention_tp(self) -> int:
        """Ranks that split a layer's KV heads among them."""
        return self.tp // self.attention_groups

    def layers(self, layers: int) -> int:
        """Layers of the largest pipeline stage, whose L2 holds the fewest tokens."""
        return -(-layers // self.pp)
