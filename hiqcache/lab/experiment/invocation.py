"""One `hiqcache experiment run`: plan, refuse what shows nothing, start servers, carry out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from hiqcache.cpu_server import CPU_ARGUMENTS, CPU_ENVIRONMENT
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.arms import ALL_ARMS, ARMS, Deployment, arms_named
from hiqcache.lab.experiment.execute import Session, execute
from hiqcache.lab.experiment.model import with_tokenizer
from hiqcache.lab.experiment.plan import (
    A_ARMS,
    CURVE_GROUPS,
    Run,
    Setting,
    by_server,
    crossover,
    curve,
    equal_budget,
    equal_capacity,
)
from hiqcache.lab.experiment.preconditions import refuse_blind_runs
from hiqcache.lab.experiment.servers import Launch, OneByOne, Servers, SideBySide
from hiqcache.lab.experiment.store import Store, load_provenance, load_rows, new_folder
from hiqcache.lab.experiment.workload import Workload
from hiqcache.lab.serving.container import image_digest
from hiqcache.provenance import cpu_model, provenance


@dataclass(frozen=True)
class Request:
    """What the command line asked for; sizes in tokens and bytes."""

    experiments: tuple[str, ...]
    model: str
    load_format: str | None
    workload: Workload
    l1_tokens: int
    budget_bytes: int
    page_size: int
    curve_groups: tuple[int, ...] | None
    seed: int
    arms: tuple[str, ...] | None
    repeats: Mapping[str, int]
    out: Path | None
    resume: Path | None
    logs: Path
    side_by_side: bool
    gpus: tuple[str, ...]
    per_gpu: int
    warm_up: bool
    commit: str | None
    image: str
    container_image: str | None
    arguments: tuple[str, ...]
    command: tuple[str, ...]


def run_invocation(request: Request) -> tuple[Path, int]:
    """Carry the request out.

    Returns
    -------
    tuple
        The folder of results, and how many runs failed or may not be used.

    Raises
    ------
    UsageError
        The workload cannot tell the arms apart, or the folder is somebody else's.
    """
    geometry = model_geometry(request.model)
    rows = load_rows(request.resume) if request.resume else []
    runs = [run for name in request.experiments for run in plan(request, name, geometry, rows)]
    if not runs:
        raise UsageError(
            f"nothing to run: the arms named have no part in {', '.join(request.experiments)}; "
            f"a has {', '.join(A_ARMS)}"
        )
    refuse_blind_runs(runs, geometry)
    origin = _origin(request)
    label = f"{geometry_label(geometry)}-{origin['device']}"
    store = Store(request.resume or request.out or new_folder(label), resume=bool(request.resume))
    done = store.done()
    runs = [run for run in runs if run.key not in done]
    logs = request.logs / store.folder.name
    logs.mkdir(parents=True, exist_ok=True)
    model = with_tokenizer(request.model, request.load_format, logs)
    session = Session(
        model=model,
        geometry=geometry,
        load_format=request.load_format,
        store=store,
        log=logs / "client.log",
        invocation=len(load_provenance(store.folder)),
        warm_up=request.warm_up,
    )
    store.add_provenance(origin)
    if not runs:
        return store.folder, 0
    total = sum(run.workload.requests for run in runs)
    with (
        tqdm(total=total, unit="req", dynamic_ncols=True) as bar,
        _servers(request, model, geometry, logs, runs, bar) as servers,
    ):
        if not request.side_by_side:
            return store.folder, execute(session, by_server(runs), servers, bar)
        unusable = 0
        for experiment in request.experiments:
            # Planned again: which arm is a codec's best may have been measured by now.
            runs = plan(request, experiment, geometry, [*rows, *load_rows(store.folder)])
            runs = [run for run in runs if run.key not in done]
            unusable += execute(session, runs, servers, bar)
        return store.folder, unusable


def plan(
    request: Request, experiment: str, geometry: Geometry, rows: Sequence[dict[str, Any]]
) -> list[Run]:
    """The runs of one experiment; `rows` are what has been measured before."""
    setting = Setting(
        geometry,
        request.workload,
        request.l1_tokens,
        request.budget_bytes,
        request.page_size,
        request.seed,
        has_gpu(),
    )
    names = request.arms or tuple(arm.name for arm in ARMS)
    repeats = range(request.repeats[experiment])
    if experiment == "a":
        return equal_capacity(setting, names, repeats)
    if experiment == "b":
        return equal_budget(setting, arms_named(names), repeats)
    if experiment == "repeat":
        done = 1 + max((row["repeat"] for row in rows if row["experiment"] == "b"), default=-1)
        return equal_budget(setting, arms_named(names), range(done, done + len(repeats)))
    best = best_arms(rows, names)
    if experiment == "curve":
        return curve(setting, best, request.curve_groups or CURVE_GROUPS, repeats)
    return crossover(setting, best, repeats)


def best_arms(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """One arm a codec: the one with the most output in B so far, else `write_back`."""
    best: dict[str, tuple[float, str]] = {}
    for arm in arms_named(names):
        if arm.codec is None:
            continue
        speeds = [
            row["output_tokens_per_s"]
            for row in rows
            if row["experiment"] == "b" and row["arm"] == arm.name
        ]
        speed = median(speeds) if speeds else 0.0
        if arm.codec not in best or speed > best[arm.codec][0]:
            best[arm.codec] = (speed, arm.name)
    return [name for _, name in best.values()]


def model_geometry(model: str) -> Geometry:
    """The KV shape of a folder, or of an id that Hugging Face knows."""
    if Path(model).exists():
        return Geometry.load(model)
    from transformers import AutoConfig

    try:
        return Geometry.from_config(AutoConfig.from_pretrained(model).to_dict(), model)
    except (OSError, ValueError) as error:
        raise UsageError(f"--model {model} cannot be loaded: {error}") from error


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def geometry_label(geometry: Geometry) -> str:
    """The last part of a model's id or path."""
    return Path(geometry.name).name.lower()


def _servers(
    request: Request,
    model: str,
    geometry: Geometry,
    logs: Path,
    runs: Sequence[Run],
    bar: Any,
) -> Servers:
    gpu = has_gpu()
    load = ("--load-format", request.load_format) if request.load_format else ()
    # An image for the CPU says so itself.
    on_cpu = not gpu and request.container_image is None
    gpus = request.gpus
    if gpu and not gpus and request.container_image is not None:
        gpus = ("0",)  # a container sees no GPU but those it is given
    launch = Launch(
        model,
        geometry,
        (*(CPU_ARGUMENTS if on_cpu else ()), *load, *request.arguments),
        CPU_ENVIRONMENT if on_cpu else {},
        logs,
        gpus,
        request.per_gpu,
        request.container_image,
    )
    if not request.side_by_side:
        return OneByOne(launch)
    deployments: dict[str, Deployment] = {run.deployment.name: run.deployment for run in runs}
    order = [arm.name for arm in ALL_ARMS]
    placed = sorted(
        deployments.values(), key=lambda d: (d.sizing.tokens is not None, order.index(d.arm.name))
    )
    bar.set_description(f"starting {len(placed)} servers")
    return SideBySide(launch, placed)


def _origin(request: Request) -> dict[str, Any]:
    """Provenance of an invocation."""
    import torch

    if torch.cuda.is_available():
        from hiqcache.lab.bench.gpu import gpu_origin

        origin: dict[str, Any] = dict(gpu_origin(request.commit))
    else:
        origin = provenance("cpu", cpu_model())
        origin |= {"commit": request.commit} if request.commit else {}
    return origin | {
        "cuda": torch.version.cuda,
        "image": image_digest(request.container_image)
        if request.container_image
        else request.image,
        # Where things lay on this machine says nothing about the figures.
        "command": [Path(word).name if Path(word).exists() else word for word in request.command],
        "server_arguments": list(request.arguments),
        "base_seed": request.seed,
        "python": sys.version.split()[0],
    }
