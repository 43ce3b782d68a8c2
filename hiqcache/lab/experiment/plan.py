"""What `experiment run` runs, and in what order: data, made before any server starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from hiqcache.codec.catalog import BASELINE
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.configuration import Configuration, Deployment, Sizing
from hiqcache.lab.experiment.row import Key
from hiqcache.lab.experiment.workload import Workload

A_POLICY = "write_back"
CURVE_GROUPS = (6, 14, 20, 26, 40, 60, 80, 100, 140)
"""Beside B's 32 groups, at prefixes of 2048: from inside a 16,384-token L1 to where an L2 of
8 GB with three times BF16's tokens falls too."""

Chosen = Sequence[Configuration]

CROSSOVER_PREFIXES = (512, 2048)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One measurement: an arm under a workload, with the seed that its whole repeat shares."""

    experiment: str
    deployment: Deployment
    workload: Workload
    repeat: int
    seed: int

    @property
    def name(self) -> str:
        return (
            f"{self.experiment} {self.deployment.name} "
            f"{self.workload.groups} x {self.workload.prefix}, repeat {self.repeat}"
        )

    @property
    def key(self) -> Key:
        """As `Measurement.key`."""
        shape, deployment = self.workload, self.deployment
        return (
            *(self.experiment, deployment.name, deployment.page),
            *(shape.groups, shape.prefix, self.repeat),
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all experiments of an invocation share.

    Parameters
    ----------
    gpu
        Whether SGLang's own BF16 pool can be run; HiQCache's identity codec stands in for it.
    """

    geometry: Geometry
    workload: Workload
    l1_tokens: int
    budget_bytes: int
    page: int
    base_seed: int
    gpu: bool

    def deployment(self, one: Configuration, tokens: int | None = None) -> Deployment:
        """A configuration with L2 by the budget, or of so many tokens."""
        budget = Sizing(budget_bytes=self.budget_bytes)
        return Deployment(
            configuration=one if self.gpu else one.on_cpu(),
            l1_tokens=self.l1_tokens,
            sizing=budget if tokens is None else Sizing(tokens=tokens),
            page=one.page or self.page,
        )

    def seed(self, experiment: str, groups: int, repeat: int) -> int:
        """One for each workload of each repeat: no two runs on a server share a prompt."""
        return crc32(f"{self.base_seed} {experiment} {groups} {repeat}".encode()) % 2**31


def equal_budget(setting: Setting, chosen: Chosen, repeats: range) -> list[Run]:
    """Experiment B: the same bytes for every codec."""
    deployments = [setting.deployment(one) for one in chosen]
    return _runs(setting, "b", deployments, [setting.workload], repeats)


def equal_capacity(setting: Setting, chosen: Chosen, repeats: range) -> list[Run]:
    """Experiment A: the tokens that the budget holds in BF16, for every codec, under one policy.

    BF16 itself is the same server as in B.
    """
    reference = Sizing(budget_bytes=setting.budget_bytes).capacity(
        setting.geometry, BASELINE, setting.l1_tokens, setting.page
    )
    deployments = [
        setting.deployment(one, None if one.record == BASELINE else reference.tokens)
        for one in chosen
        if one.policy == A_POLICY
    ]
    return _runs(setting, "a", deployments, [setting.workload], repeats)


def curve(setting: Setting, chosen: Chosen, groups: Sequence[int], repeats: range) -> list[Run]:
    """Working sets from one that fits in L1 to one beyond every L2."""
    deployments = [setting.deployment(one) for one in chosen]
    workloads = [setting.workload.with_groups(count) for count in groups]
    return _runs(setting, "curve", deployments, workloads, repeats)


def crossover(setting: Setting, chosen: Chosen, repeats: range) -> list[Run]:
    """Two prefix lengths: the points that the arithmetic is checked at."""
    deployments = [setting.deployment(one) for one in chosen]
    lengths = sorted({min(length, setting.l1_tokens // 4) for length in CROSSOVER_PREFIXES})
    workloads = [Workload(1, 1, length, 1, 1, 1) for length in lengths]
    return _runs(setting, "crossover", deployments, workloads, repeats)


def by_server(runs: Sequence[Run]) -> list[Run]:
    """The same runs with as few server starts as one server at a time allows.

    Within a repeat all runs of a server follow each other; every other repeat goes through
    the servers backwards, so that its first is the last one's.
    """
    servers = list(dict.fromkeys(run.deployment.name for run in runs))

    def place(run: Run) -> tuple[int, int]:
        index = servers.index(run.deployment.name)
        return run.repeat, -index if run.repeat % 2 else index

    return sorted(runs, key=place)


def _runs(
    setting: Setting,
    experiment: str,
    deployments: Sequence[Deployment],
    workloads: Sequence[Workload],
    repeats: range,
) -> list[Run]:
    """Every deployment under every workload, with the requests that they share.

    Every other time the servers take their turns backwards, so that a drift of the machine meets
    all of them.
    """
    runs = []
    for repeat in repeats:
        for place, workload in enumerate(workloads):
            size = workload.prefix if experiment == "crossover" else workload.groups
            seed = setting.seed(experiment, size, repeat)
            turns = reversed(deployments) if (repeat + place) % 2 else deployments
            runs += [
                Run(
                    experiment=experiment,
                    deployment=deployment,
                    workload=workload,
                    repeat=repeat,
                    seed=seed,
                )
                for deployment in turns
            ]
    return runs
