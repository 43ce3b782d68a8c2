"""Experiments before and after the servers: arms, plans, refusals, results, reports."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hiqcache.cli import build_parser, main
from hiqcache.codec.catalog import codec_names
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.experiment.configuration import (
    DEFAULTS,
    PAGES,
    SHORT,
    Deployment,
    Sizing,
    configurations,
)
from hiqcache.lab.experiment.crossing import crossing
from hiqcache.lab.experiment.invocation import under_one_policy
from hiqcache.lab.experiment.model import with_tokenizer
from hiqcache.lab.experiment.plan import (
    Run,
    Setting,
    by_server,
    curve,
    equal_budget,
    equal_capacity,
)
from hiqcache.lab.experiment.plots import COLOURS
from hiqcache.lab.experiment.row import Figures, Measurement, Single, load_rows
from hiqcache.lab.experiment.workload import Workload
from hiqcache.lab.present import aligned, interval, markdown, spread
from hiqcache.lab.row import Store

pytest.importorskip("sglang", reason="the workload is SGLang's own")

MEASURED = Path(__file__).parents[2] / "results/experiments/cpu-8x128"
QWEN = Geometry.load("qwen3-8b")
SETTING = Setting(
    geometry=QWEN,
    workload=Workload(),
    l1_tokens=16384,
    budget_bytes=8 * 10**9,
    page=1,
    base_seed=0,
    gpu=True,
)
CODECS = ("off", "int8", "int8-compact", None)
ARMS = [one for one in SHORT if one.codec in CODECS]


def deployment(name: str, **sizing: int) -> Deployment:
    (one,) = configurations([name])
    return Deployment(configuration=one, l1_tokens=16384, sizing=Sizing(**sizing), page=1)


def capacities(runs: list[Run]) -> dict[str, int]:
    found = {}
    for run in runs:
        capacity = run.deployment.capacity(QWEN)
        found[run.deployment.name] = capacity.tokens if capacity else 0
    return found


def test_b_has_the_seeds_capacities() -> None:
    assert capacities(equal_budget(SETTING, ARMS, range(1))) == {
        "bf16-write_back": 54254,
        "int8-write_back": 96451,
        "int8-compact-write_back": 106838,
        "bf16-write_through": 54254,
        "int8-write_through": 96451,
        "int8-compact-write_through": 106838,
        "none": 0,
    }


def test_b_measures_all_that_a_user_of_bf16_might_run() -> None:
    plain = [one for one in DEFAULTS if one.codec == "off"]
    assert {(one.page, one.policy, one.layout) for one in plain} == {
        (page, policy, layout)
        for page in PAGES
        for policy in ("write_back", "write_through")
        for layout in ("layer_first", "page_first")
    }
    runs = equal_budget(SETTING, DEFAULTS, range(1))
    assert len({run.deployment.name for run in runs}) == len(DEFAULTS) == 19
    assert {run.deployment.page for run in runs} == set(PAGES)


def test_every_codec_has_arms_and_a_colour() -> None:
    for codec in codec_names():
        named = configurations([f"{codec}-write_back", f"{codec}-write_through"])
        assert {one.policy for one in named} == {"write_back", "write_through"}
        assert codec in COLOURS
    (run,) = equal_capacity(SETTING, configurations(["int8-compact-write_back"]), range(1))
    assert run.deployment.name == "int8-compact-write_back@54254"
    assert run.deployment.arm(QWEN).codec == "int8-compact"


def test_a_has_bf16s_tokens_in_every_arm() -> None:
    runs = equal_capacity(SETTING, ARMS, range(1))
    assert capacities(runs) == {
        "bf16-write_back": 54254,
        "int8-write_back@54254": 54254,
        "int8-compact-write_back@54254": 54254,
    }
    sizes = [
        capacity.bytes_allocated for run in runs if (capacity := run.deployment.capacity(QWEN))
    ]
    assert sizes == [8_000_077_824, 4_500_043_776, 4_062_539_520]


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("record", ["bf16", "int8", "int8-compact"])
def test_any_budget_is_met_to_the_page(record: str, page: int) -> None:
    for budget in range(50_000_000, 60_000_000, 777_777):
        sizing = Sizing(budget_bytes=budget)
        capacity = sizing.capacity(QWEN, record, 1200, page)
        assert 0 <= capacity.tokens - budget // capacity.bytes_per_token <= page
        flag, value = sizing.arguments(QWEN, record, 1200, page)
        assert flag == "--hicache-ratio"
        assert int(1200 * float(value)) // page * page + page == capacity.tokens


def test_an_arm_says_what_sglang_is_started_with() -> None:
    through = deployment("bf16-write_through", budget_bytes=8 * 10**9)
    text = " ".join(through.arm(QWEN).pools.arguments())
    assert "--hicache-size 8 --hicache-write-policy write_through" in text
    assert "--hicache-mem-layout page_first" in text
    assert through.arm(QWEN).codec == "off"
    none = deployment("none", budget_bytes=8 * 10**9)
    assert "--enable-hierarchical-cache" not in none.arm(QWEN).pools.arguments()
    with pytest.raises(UsageError, match="unknown arm 'int4': expected some of bf16-write_back"):
        configurations(["int4"])


def test_repeats_alternate_and_share_their_seed() -> None:
    runs = equal_budget(SETTING, ARMS[:3], range(3))
    orders = [[run.deployment.name for run in runs if run.repeat == n] for n in range(3)]
    assert orders[0] == orders[1][::-1] == orders[2]
    seeds = {run.repeat: {r.seed for r in runs if r.repeat == run.repeat} for run in runs}
    assert all(len(shared) == 1 for shared in seeds.values())
    assert len(set.union(*seeds.values())) == 3


def test_no_two_workloads_of_a_server_share_a_seed() -> None:
    runs = equal_budget(SETTING, ARMS[:1], range(5))
    runs += curve(SETTING, configurations(["bf16-write_back"]), (6, 14, 32), range(2))
    assert len({run.seed for run in runs}) == len(runs)


def test_one_server_at_a_time_needs_few_starts() -> None:
    runs = equal_budget(SETTING, ARMS[:3], range(2))
    runs += curve(SETTING, ARMS[:3], (6, 40), range(2))
    names = [run.deployment.name for run in by_server(runs)]
    starts = 1 + sum(a != b for a, b in zip(names, names[1:], strict=False))
    assert starts == 5


def test_the_order_is_the_clients() -> None:
    import random

    import numpy as np
    from sglang.benchmark.datasets.generated_shared_prefix import (
        sample_generated_shared_prefix_requests,
    )

    workload = Workload(groups=5, prompts=3, prefix=12, question=4, output=2)

    class Tokenizer:
        def get_vocab(self) -> dict[str, int]:
            return {str(token): token for token in range(50_000)}

    random.seed(7)
    np.random.seed(7)
    rows = sample_generated_shared_prefix_requests(
        5, 3, 12, 4, 2, 1.0, Tokenizer(), 7, send_routing_key=True, input_ids=True
    )
    first: dict[tuple[int, ...], int] = {}
    assert workload.order(7) == [
        first.setdefault(tuple(row.prompt[:12]), len(first)) for row in rows
    ]


def test_the_ceiling_is_every_prompt_but_the_first() -> None:
    assert Workload().ceiling == pytest.approx(0.72727, abs=1e-5)
    assert Workload().working_set == 77_824


@pytest.mark.parametrize(
    ("experiment", "changes", "message"),
    [
        ("b", {"groups": 7}, "fit in an L1 of 16,384 tokens, so that L2 is never read"),
        ("b", {"groups": 20}, "fit in BF16's L2, 54,254 tokens; what would do: --"),
        ("b", {"groups": 4000}, "are predicted to hit alike"),
        ("b", {"prompts": 1}, "no prefix is asked for twice"),
        ("a", {"groups": 7}, "experiment a cannot tell its arms apart"),
    ],
)
def test_a_workload_that_shows_nothing_is_refused(
    experiment: str, changes: dict[str, int], message: str
) -> None:
    from hiqcache.lab.experiment.preconditions import refuse_workloads_that_show_nothing

    setting = replace(SETTING, workload=replace(Workload(), **changes))
    runs = (
        equal_budget(setting, ARMS, range(1))
        if experiment == "b"
        else equal_capacity(setting, ARMS, range(1))
    )
    with pytest.raises(UsageError, match=message):
        refuse_workloads_that_show_nothing(runs, QWEN)


@pytest.mark.parametrize("name", ["qwen3-8b", "smollm2-135m"])
@pytest.mark.parametrize("groups", [3, 142, 600])
def test_what_is_offered_is_let_through(name: str, groups: int) -> None:
    """The options are typed as they stand, onto the command that was refused."""
    from hiqcache.lab.experiment.preconditions import refuse_workloads_that_show_nothing

    geometry = Geometry.load(name)

    def refusal(*more: str) -> str:
        command = ["experiment", "run", "b", "--model", name, "--groups", str(groups), *more]
        args = build_parser().parse_args(command)
        setting = replace(
            SETTING,
            geometry=geometry,
            workload=replace(Workload(), groups=args.groups),
            l1_tokens=args.l1_tokens,
            budget_bytes=args.l2_bytes or 8 * 10**9,
        )
        try:
            refuse_workloads_that_show_nothing(equal_budget(setting, ARMS, range(1)), geometry)
        except UsageError as error:
            return str(error)
        return ""

    refused = refusal()
    offered = refused.partition("what would do: ")[2].split(", or ")
    for options in offered if refused else ():
        assert refusal(*options.split()) == "", options


def test_the_time_is_said_before_the_start(tmp_path: Path) -> None:
    from hiqcache.lab.experiment.estimate import Machine, announcement, seconds

    runs = equal_budget(SETTING, ARMS, range(2))
    slow, fast = (Machine(speed * 10**12, speed * 10**11) for speed in (1, 4))
    took = [seconds(runs, QWEN, 8 * 10**9, one, warm_up=True) for one in (slow, fast)]
    assert took[0] > took[1] > len({run.deployment.name for run in runs}) * 45
    unknown = announcement(runs, QWEN, "Qwen/Qwen3-8B", "cpu", warm_up=True)
    assert unknown.startswith(f"{len(runs)} runs on ") and "no estimate" in unknown
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    assert "minutes on this machine" in announcement(runs, QWEN, str(tmp_path), "cpu", warm_up=True)


def test_the_seeds_workload_and_the_curve_are_let_through() -> None:
    from hiqcache.lab.experiment.preconditions import refuse_workloads_that_show_nothing

    refuse_workloads_that_show_nothing(equal_budget(SETTING, ARMS, range(5)), QWEN)
    refuse_workloads_that_show_nothing(equal_capacity(SETTING, ARMS, range(1)), QWEN)
    # Arms that are added to a folder that has BF16 already.
    added = configurations(["none", "int8-write_through", "int8-compact-write_back"])
    refuse_workloads_that_show_nothing(equal_budget(SETTING, added, range(1)), QWEN)
    refuse_workloads_that_show_nothing(curve(SETTING, ARMS, (2, 500), range(1)), QWEN)


def test_the_command_refuses_before_it_starts_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 9} | _config()))
    out = tmp_path / "results"
    command = ["experiment", "run", "b", "--model", str(tmp_path), "--load-format", "dummy"]
    assert main([*command, "--groups", "3", "--hicache-size", "8", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "cannot tell its arms apart" in error
    assert not out.exists()


def _config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 4096,
    }


def test_every_id_of_a_bare_geometry_is_text(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = tmp_path / "bare"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"vocab_size": 300} | _config()))
    with pytest.raises(UsageError, match="holds no tokenizer"):
        with_tokenizer(str(source), None, tmp_path)
    folder = with_tokenizer(str(source), "dummy", tmp_path / "made")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer.get_vocab()) == 300
    assert all(tokenizer.decode([token]) for token in range(300))
    assert tokenizer.encode(tokenizer.decode([5, 299, 0])) == [5, 299, 0]
    assert with_tokenizer(folder, None, tmp_path) == folder


def test_the_curve_runs_every_codec_alike() -> None:
    """Under BF16's best in B, so that two arms differ in the record alone."""
    measured = load_rows(MEASURED.parent / "h200-qwen3-8b")
    for rows, shape in (
        ([], "write_through-page_first-64"),
        (measured, "write_back-layer_first-1"),
    ):
        alike = under_one_policy(rows, ARMS, 64)
        assert [one.name for one in alike] == [
            f"{record}-{shape}" for record in ("bf16", "int8", "int8-compact")
        ]


def row(**changes: Any) -> Measurement:
    base = {"experiment": "b", "arm": "x", "repeat": 0, "valid": True, "seed": 0, "page_size": 1}
    base |= {"geometry": "g", "l1_tokens": 9, "capacity_tokens": 1000, "capacity_bytes": 82944000}
    return Measurement(**(base | {"workload": Workload(4, 1, 8, 1, 1, 1)} | changes))


def test_results_are_added_to_and_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    store = Store(folder)
    store.add("rows", row(), row(repeat=1, valid=False, reason="the server ended"))
    assert [entry.reason for entry in load_rows(folder, valid_only=False)] == [
        None,
        "the server ended",
    ]
    Store(folder, resume=True).add("rows", row(repeat=2))
    assert [entry.key for entry in load_rows(folder)] == [("b", "x", 1, 4, 8, n) for n in (0, 2)]
    with pytest.raises(UsageError, match="never overwritten"):
        Store(folder)
    with pytest.raises(UsageError, match="no results to add to"):
        Store(tmp_path / "two", resume=True)


def test_a_cut_off_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row().entry()) + '\n{"val')
    with pytest.raises(UsageError, match="line 2 is not JSON"):
        load_rows(tmp_path)


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    (folder,) = {path.parent for path in MEASURED.glob("rows.jsonl")}
    rows = load_rows(folder)
    assert isinstance(rows[0].figures, Figures)
    store = Store(tmp_path / "again")
    store.add("rows", *rows)
    assert load_rows(store.folder) == rows
    assert rows[0].get("hit_rate") == rows[0].figures.hit_rate
    assert rows[0].get("l1_tokens") == rows[0].l1_tokens


def test_a_spread_is_median_least_and_most() -> None:
    assert spread([3, 1, 2], ".1f") == "2.0 (1.0 to 3.0)"
    assert spread([3], ".1f", 2) == "6.0"
    assert spread([None], ".1f") == "-"
    assert interval({"value": 0.5, "low": 0.25, "high": 1}, ".0%") == "50% (25% to 100%)"
    assert markdown(["a", "b"], [["1", "2"]]).splitlines()[1] == "| --- | ---: |"
    assert aligned([["", "b"], ["long", "1.25"]]).splitlines() == ["         b", "long  1.25"]


def test_restoring_loses_below_bytes_per_token_times_prefill() -> None:
    singles = [
        Single(
            prefix_tokens=length,
            cold_ms=10 + length / 25,
            l1_hit_ms=10,
            l2_hit_ms=10 + length / 500,
            restore_tokens_per_ms=640.0,
        )
        for length in (512, 2048)
    ]
    found = crossing([row(figures=single) for single in singles])
    assert found.prefill_tokens_per_ms == pytest.approx(25)
    assert found.restore_tokens_per_ms == 640
    assert found.link_gb_per_s == pytest.approx(53.08, abs=0.01)
    assert found.break_even_gb_per_s == pytest.approx(2.0736)
    unseen = [row(figures=replace(single, restore_tokens_per_ms=None)) for single in singles]
    assert crossing(unseen).restore_tokens_per_ms == pytest.approx(500)


def test_a_report_of_real_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "report"
    assert main(["report", str(MEASURED), "--out", str(out)]) == 0
    text = (out / "report.md").read_text()
    assert text.strip() in capsys.readouterr().out
    for phrase in (
        "Experiment B",
        "54,254",
        "96,451",
        "The curve",
        "Random weights",
        "CPU platform",
    ):
        assert phrase in text
    assert (out / "b.png").stat().st_size > 10_000
    assert (out / "curve.png").stat().st_size > 10_000
    with pytest.raises(UsageError, match="no usable results"):
        from hiqcache.lab.experiment.report import report

        report(tmp_path)
