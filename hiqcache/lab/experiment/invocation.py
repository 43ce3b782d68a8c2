"""One `hiqcache experiment run`: plan, refuse what shows nothing, start servers, carry out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.configuration import (
    DEFAULTS,
    LAYOUT,
    SHORT,
    Configuration,
    configurations,
)
from hiqcache.lab.experiment.estimate import announcement
from hiqcache.lab.experiment.execute import Session, execute
from hiqcache.lab.experiment.model import with_tokenizer
from hiqcache.lab.experiment.plan import (
    A_POLICY,
    CURVE_GROUPS,
    Run,
    Setting,
    by_server,
    crossover,
    curve,
    equal_budget,
    equal_capacity,
)
from hiqcache.lab.experiment.preconditions import refuse_workloads_that_show_nothing
from hiqcache.lab.experiment.row import (
    BF16,
    PROVENANCE,
    Measurement,
    best_arm,
    load_provenance,
    load_rows,
)
from hiqcache.lab.experiment.workload import Workload
from hiqcache.lab.fleet import Fleet, Launch, has_gpu
from hiqcache.lab.model.hub import geometry_of
from hiqcache.lab.progress import progress
from hiqcache.lab.row import Store, origin
from hiqcache.lab.serving.container import image_digest


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """What the command line asked for; sizes in tokens and bytes.

    Parameters
    ----------
    arms
        Names of configurations; the default ones when None.
    repeats
        How often each experiment is repeated, by its name.
    out, resume
        A new folder of results, or one that is added to; a name of its own without either.
    commit, image
        For the results: the commit where the code runs from no checkout, and the digest of the
        image that this runs in.
    container_image
        The image that every server runs in; processes when None.
    command
        The words of the command line.
    """

    experiments: tuple[str, ...]
    model: str
    workload: Workload
    budget_bytes: int
    repeats: Mapping[str, int]
    l1_tokens: int = 16384
    page: int = 1
    seed: int = 0
    load_format: str | None = None
    curve_groups: tuple[int, ...] | None = None
    arms: tuple[str, ...] | None = None
    out: Path | None = None
    resume: Path | None = None
    logs: Path = Path("out/experiment")
    side_by_side: bool = False
    gpus: tuple[str, ...] = ()
    per_gpu: int = 6
    warm_up: bool = True
    commit: str | None = None
    image: str = "none"
    container_image: str | None = None
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


def carry_out(asked: Invocation) -> tuple[Path, int]:
    """Plan, refuse what shows nothing, start servers, run.

    Returns
    -------
    tuple
        The folder of results, and how many runs failed or may not be used.

    Raises
    ------
    UsageError
        The workload cannot tell the arms apart, or the folder is somebody else's.
    """
    geometry = geometry_of(asked.model)
    rows = load_rows(asked.resume) if asked.resume else []
    runs = [run for name in asked.experiments for run in plan(asked, name, geometry, rows)]
    if not runs:
        raise UsageError(
            f"nothing to run: the arms named have no part in {', '.join(asked.experiments)}; "
            f"a has those of {A_POLICY}"
        )
    refuse_workloads_that_show_nothing(runs, geometry)
    provenance = _provenance(asked)
    if folder := asked.resume or asked.out:
        store = Store(folder, resume=asked.resume is not None)
    else:
        store = Store.new(f"{Path(geometry.name).name.lower()}-{provenance['device']}")
    done = {row.key for row in load_rows(store.folder)}
    runs = [run for run in runs if run.key not in done]
    logs = asked.logs / store.folder.name
    logs.mkdir(parents=True, exist_ok=True)
    session = Session(
        model=with_tokenizer(asked.model, asked.load_format, logs),
        geometry=geometry,
        load_format=asked.load_format,
        store=store,
        log=logs / "client.log",
        invocation=len(load_provenance(store.folder)),
        warm_up=asked.warm_up,
    )
    store.add(PROVENANCE, provenance)
    if not runs:
        return store.folder, 0
    device = "cuda" if has_gpu() else "cpu"
    print(
        announcement(runs, geometry, session.model, device, warm_up=asked.warm_up), file=sys.stderr
    )
    with progress("experiment") as clock, _fleet(asked, session, logs, runs) as fleet:
        if not asked.side_by_side:
            return store.folder, execute(session, by_server(runs), fleet, clock)
        unusable = 0
        for experiment in asked.experiments:
            # Planned again: which arm is a codec's best may have been measured by now.
            again = plan(asked, experiment, geometry, [*rows, *load_rows(store.folder)])
            due = [run for run in again if run.key not in done]
            unusable += execute(session, due, fleet, clock)
        return store.folder, unusable


def plan(
    asked: Invocation, experiment: str, geometry: Geometry, rows: Sequence[Measurement]
) -> list[Run]:
    """The runs of one experiment; `rows` are what has been measured before."""
    setting = Setting(
        geometry=geometry,
        workload=asked.workload,
        l1_tokens=asked.l1_tokens,
        budget_bytes=asked.budget_bytes,
        page=asked.page,
        base_seed=asked.seed,
        gpu=has_gpu(),
    )
    chosen = configurations(asked.arms) if asked.arms else DEFAULTS
    repeats = range(asked.repeats[experiment])
    if experiment == "a":
        return equal_capacity(setting, configurations(asked.arms) if asked.arms else SHORT, repeats)
    if experiment == "b":
        return equal_budget(setting, chosen, repeats)
    if experiment == "repeat":
        done = 1 + max((row.repeat for row in rows if row.experiment == "b"), default=-1)
        return equal_budget(setting, chosen, range(done, done + len(repeats)))
    alike = under_one_policy(rows, chosen, asked.page)
    if experiment == "curve":
        return curve(setting, alike, asked.curve_groups or CURVE_GROUPS, repeats)
    return crossover(setting, alike, repeats)


def under_one_policy(
    rows: Sequence[Measurement], chosen: Sequence[Configuration], page: int
) -> list[Configuration]:
    """Every codec under the policy, layout and page with which BF16 has done best in B so far.

    What then differs between two arms is the record alone. SGLang's defaults where nothing has
    been measured.
    """
    shape = ("write_through", LAYOUT["write_through"], page)
    if best := best_arm([row for row in rows if row.codec in BF16], "output_tokens_per_s"):
        shape = (str(best.policy), str(best.layout), best.page_size)
    codecs = dict.fromkeys(one.codec for one in chosen if one.codec is not None)
    return [Configuration.of(codec, *shape) for codec in codecs]


def _fleet(asked: Invocation, session: Session, logs: Path, runs: Sequence[Run]) -> Fleet:
    load = ("--load-format", asked.load_format) if asked.load_format else ()
    launch = Launch(
        model=session.model,
        arguments=(*load, *asked.arguments),
        logs=logs,
        gpus=asked.gpus,
        per_gpu=asked.per_gpu,
        image=asked.container_image,
    )
    deployments = {run.deployment.name: run.deployment for run in runs}
    arms = [deployment.arm(session.geometry) for deployment in deployments.values()]
    return Fleet(launch, arms, side_by_side=asked.side_by_side)


def _provenance(asked: Invocation) -> dict[str, Any]:
    """Provenance of an invocation."""
    image = asked.container_image
    return origin(asked.commit) | {
        "image": image_digest(image) if image else asked.image,
        # Where things lay on this machine says nothing about the figures.
        "command": [Path(word).name if Path(word).exists() else word for word in asked.command],
        "server_arguments": list(asked.arguments),
        "base_seed": asked.seed,
    }
