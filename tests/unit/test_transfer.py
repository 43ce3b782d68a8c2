"""Choosing a transfer, planning its kernels, and what the benchmark makes of a measurement."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from hiqcache import cli
from hiqcache.codec.registry import get_codec
from hiqcache.config import TRANSFERS
from hiqcache.errors import UsageError
from hiqcache.lab.bench.percentiles import Percentiles
from hiqcache.lab.bench.plot import transfer_plot
from hiqcache.lab.bench.shape import Shape as KvShape
from hiqcache.lab.bench.transfer import TransferSpec, check_spec, figures, pool_slots
from hiqcache.transfer import host_access, registry
from hiqcache.transfer.launch import _refused
from hiqcache.transfer.plan import make_plan, next_power
from hiqcache.transfer.registry import choose_transfer
from hiqcache.transfer.torch_transfer import TorchTransfer
from tests.unit.kernel_pool import Shape, make_sides

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HOST = (torch.zeros(16, dtype=torch.uint8),)


def test_auto_on_a_cpu_is_torch() -> None:
    assert choose_transfer("auto", CPU) == (TorchTransfer, "the only transfer for cpu tensors")


@pytest.mark.parametrize(
    ("access", "name", "reason"),
    [
        (None, "fused", "kernels reach the host memory"),
        ("Triton is missing", "torch", "slow, but fused cannot work here: Triton is missing"),
    ],
)
def test_auto_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, access: str | None, name: str, reason: str
) -> None:
    monkeypatch.setattr(registry, "why_no_host_access", lambda host, device: access)
    kind, why = choose_transfer("auto", CUDA, HOST)
    assert (kind.name, why) == (name, reason)


@pytest.mark.parametrize("codec_name", ["int8", "int8-compact"])
def test_non_finite_heads_are_counted_once_per_backup(codec_name: str) -> None:
    codec, slots = get_codec(codec_name), torch.arange(4)
    k, v = make_sides(codec, Shape(heads=2, k_dim=16, v_dim=8, layers=3))
    for side in (k, v):
        for rows in side.device:
            rows.zero_()
    k.device[0][1, 0, 3] = torch.nan
    k.device[0][1, 0, 5] = torch.inf
    v.device[2][3, :, 7] = -torch.inf
    k.device[1][7, 0, 0] = torch.nan  # a slot that is not backed up
    transfer = TorchTransfer(codec, k, v)
    assert transfer.nonfinite_heads() == 0
    for total in (3, 6):
        transfer.backup(slots, slots)
        assert transfer.nonfinite_heads() == total


def test_the_identity_looks_at_no_head() -> None:
    codec = get_codec("bf16")
    assert TorchTransfer(codec, *make_sides(codec, Shape())).nonfinite_heads() is None


def test_every_name_leads_to_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "why_no_host_access", lambda host, device: None)
    for name in TRANSFERS:
        kind, why = choose_transfer(name, CUDA, HOST)
        assert (kind.name, why) == (name, "as asked")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match="expected auto or one of fused, torch"):
        choose_transfer("dma", CPU)


def test_kernels_are_refused_on_a_cpu() -> None:
    with pytest.raises(UsageError, match="transfer fused cannot work here: it needs a CUDA"):
        choose_transfer("fused", CPU)


def test_fused_is_refused_where_it_cannot_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "why_no_host_access", lambda host, device: "elsewhere")
    with pytest.raises(UsageError, match="fused cannot work here: elsewhere; use auto or torch"):
        choose_transfer("fused", CUDA, HOST)


class Driver:
    """Stands in for libcuda: an address is known, and maps to another, or it is not."""

    def __init__(self, offset: int | None) -> None:
        self.offset = offset

    def cuPointerGetAttribute(self, found: Any, attribute: Any, address: Any) -> int:
        if self.offset is None:
            return 1
        found._obj.value = address.value + self.offset
        return 0


def test_memory_that_the_driver_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_access, "driver", lambda: Driver(None))
    assert (
        host_access.why_no_host_access(HOST, CUDA)
        == "the host buffers are not registered with CUDA"
    )


def test_memory_at_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_access, "driver", lambda: Driver(4096))
    reason = host_access.why_no_host_access(HOST, CUDA)
    assert reason == "host memory has another address on the GPU"


def test_no_buffers_are_no_proof() -> None:
    assert host_access.why_no_host_access((), CUDA) == "no host buffers were given"


@pytest.mark.parametrize(
    ("codec_name", "lines", "rows", "stride"),
    [("bf16", 16, 4, 2048), ("int8", 9, 7, 1152), ("int8-compact", 9, 7, 1040)],
)
def test_the_plan_of_eight_heads(codec_name: str, lines: int, rows: int, stride: int) -> None:
    codec = get_codec(codec_name)
    plan = make_plan(codec, *make_sides(codec, Shape()), programs=32)
    assert (plan.k.tile, plan.warps, plan.k_backup, plan.k_restore) == (64, 8, 16, 16)
    assert plan.k == plan.v
    assert (plan.k.lines, plan.k.rows, plan.k.stride) == (lines, rows, stride)


def test_programs_follow_the_bytes_of_each_side() -> None:
    codec = get_codec("int8")
    sides = make_sides(codec, Shape(heads=1, k_dim=192, v_dim=64))
    plan = make_plan(codec, *sides, programs=32)
    assert (plan.k_backup, plan.k_restore) == (24, 24)
    assert make_plan(codec, *sides, programs=2).k_backup == 1
    # Setting values of K aside is work of the encoder alone.
    codec = get_codec("k6v5")
    plan = make_plan(codec, *make_sides(codec, Shape()))
    assert plan.k_backup > plan.k_restore > plan.programs // 2


def test_a_large_record_widens_the_tile() -> None:
    codec = get_codec("int8")
    plan = make_plan(codec, *make_sides(codec, Shape(heads=64, k_dim=256, slots=4)), programs=2)
    assert (plan.k.tile, plan.k.rows) == (256, 1)


@pytest.mark.parametrize("codec_name", ["bf16", "int8", "int8-compact"])
@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 16, 17, 32, 40, 64, 96])
def test_every_geometry_is_planned_or_refused_by_name(codec_name: str, heads: int) -> None:
    codec = get_codec(codec_name)
    for dim in (*range(8, 264, 8), 320, 384, 512, 576):
        sides = make_sides(codec, Shape(heads=heads, k_dim=dim, v_dim=8, layers=1, slots=1))
        # What a program needs to exchange a row, in powers of two; the smallest row needs a tile.
        padded = max(2, next_power(heads)) * next_power(dim)
        if codec_name == "bf16" or padded <= 65536:
            plan = make_plan(codec, *sides, programs=2)
            assert plan.k.rows >= 1 and plan.k.rows * plan.k.lines <= plan.k.tile
            assert plan.k.lines * 128 >= plan.k.used
        else:
            with pytest.raises(UsageError, match=f"{heads} KV heads of {dim} .K. and 8 .V. on one"):
                make_plan(codec, *sides, programs=2)


def test_a_row_too_large_for_the_kernels_is_refused_with_the_way_out() -> None:
    codec = get_codec("int8")
    sides = make_sides(codec, Shape(heads=96, k_dim=576, v_dim=64, layers=1, slots=1))
    words = r"need 131072 bytes .* may take 98304: raise --tp-size or set HIQCACHE_TRANSFER=torch"
    with pytest.raises(UsageError, match=words):
        make_plan(codec, *sides, programs=2)


def test_a_kernel_that_this_gpu_cannot_load_is_refused_with_the_way_out() -> None:
    codec = get_codec("int8")
    plan = make_plan(codec, *make_sides(codec, Shape()), programs=2)
    words = (
        r"8 KV heads of 128 .* do not work on this GPU \(.*shared memory.*HIQCACHE_TRANSFER=torch"
    )
    with pytest.raises(UsageError, match=words), _refused(plan):
        raise OutOfResources(131072, 101376, "shared memory")


def test_torch_holds_no_gpu_memory_and_has_nothing_to_compile() -> None:
    codec = get_codec("int8")
    transfer = TorchTransfer(codec, *make_sides(codec, Shape()))
    transfer.warm_up()
    assert transfer.device_bytes == 0


def test_figures() -> None:
    spread = Percentiles(9.0, 10.0, 11.0, 5)
    row = figures(spread, tokens=8192, wire_bytes=74_880, bf16_bytes=147_456, limit=100.0)
    assert row["tokens_per_ms"] == 819.2
    assert row["wire_gb_per_s"] == pytest.approx(61.34, abs=0.01)
    assert row["link_share"] == pytest.approx(0.6134, abs=0.0001)
    assert row["bf16_gb_per_s"] == pytest.approx(120.8, abs=0.01)
    assert (row["p20_ms"], row["p80_ms"], row["repeats"]) == (9.0, 11.0, 5)


def test_the_pool_exceeds_any_cache() -> None:
    spec = TransferSpec(KvShape(36, 8, 128), (64,), (1, 64), ("layer_first",), (), (), None, 1)
    assert pool_slots(spec) % 64 == 0
    assert pool_slots(spec) * spec.geometry.bf16_bytes >= 4 * 10**9


def test_tokens_must_be_whole_pages() -> None:
    spec = TransferSpec(KvShape(1, 1, 8), (64, 100), (1, 64), ("layer_first",), (), (), None, 1)
    with pytest.raises(UsageError, match="100 tokens are no whole pages of 64"):
        check_spec(spec)


def test_the_plot_has_a_line_for_each_contender_and_direction(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"transfer": "memcpy", "direction": "backup", "gpu": "X"}]
    for transfer, codec in (("sglang", "bf16"), ("fused", "int8<")):
        for direction in ("backup", "restore"):
            for tokens in (64, 1024):
                rows.append(
                    {
                        "transfer": transfer,
                        "codec": codec,
                        "layout": "layer_first",
                        "page_size": 1,
                        "direction": direction,
                        "tokens": tokens,
                        "tokens_per_ms": 1.5 * tokens,
                        "gpu": "GPU & Co",
                    }
                )
    text = transfer_plot(tmp_path / "plot.svg", rows, "layer_first", 1).read_text()
    ElementTree.fromstring(text)
    for name in ("sglang, bf16", "fused, int8&lt;", "GPU &amp; Co", "restore, tokens/ms"):
        assert name in text
    assert transfer_plot(tmp_path / "none.png", [], "layer_first", 1).exists()


@pytest.mark.parametrize("bench", ["transfer", "phases"])
def test_without_a_gpu_the_benches_say_so(
    bench: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"bench": cli.LAB})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", bench]) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err


def test_rows_are_kept_as_they_come(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hiqcache.lab.bench import phases

    made = [
        {"transfer": "fused", "direction": "backup", "phase": "codec", "ms_per_1000_tokens": 1.0}
    ]

    def broken(*args: Any) -> Any:
        yield from made
        raise UsageError("lost the GPU")

    monkeypatch.setattr(cli, "COMMANDS", {"bench": cli.LAB})
    monkeypatch.setattr(phases, "run_phases", broken)
    out = tmp_path / "results" / "phases.jsonl"
    assert cli.main(["bench", "phases", "--out", str(out)]) == 2
    assert [json.loads(line) for line in out.read_text().splitlines()] == made
