"""Capacity: SGLang's sizing, to the token."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hiqcache.capacity import (
    automatic,
    automatic_ratio,
    by_ratio,
    by_size,
    bytes_per_token,
)
from hiqcache.cli import OneLineParser
from hiqcache.codec.catalog import codec_names, listed_codecs
from hiqcache.commands import capacity as command
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry

QWEN = Geometry.load("qwen3-8b")
SMOL = Geometry.load("smollm2-135m")
ASYMMETRIC = Geometry("asymmetric", 10, 4, 192, 128)


def run(*argv: str) -> int:
    """Run the subcommand alone, as the program runs it."""
    parser = OneLineParser(prog="hiqcache")
    command.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["capacity", *argv])
    code: int = args.run(args)
    return code


@pytest.mark.parametrize(
    ("geometry", "codec", "per_token", "tokens"),
    [
        (QWEN, "bf16", 147_456, 54_254),
        (QWEN, "int8", 82_944, 96_451),
        (QWEN, "int8-compact", 74_880, 106_838),
        (SMOL, "bf16", 23_040, 347_223),
        (SMOL, "int8", 15_360, 520_834),
        (SMOL, "int8-compact", 12_480, 641_026),
    ],
)
def test_eight_gigabytes(geometry: Geometry, codec: str, per_token: int, tokens: int) -> None:
    found = by_size(geometry, codec, 8)
    assert found.codec == codec
    assert found.bytes_per_token == per_token == bytes_per_token(geometry, codec)
    assert (found.tokens, found.pages) == (tokens, tokens)
    assert found.bytes_allocated == tokens * per_token


def test_k_and_v_have_records_of_their_own() -> None:
    # 4 x 192 + 8 -> 896 and 4 x 128 + 8 -> 640 bytes, in 10 layers.
    assert bytes_per_token(ASYMMETRIC, "int8") == 10 * (896 + 640)
    assert bytes_per_token(ASYMMETRIC, "bf16") == 10 * (4 * 192 + 4 * 128) * 2


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_a_rank_holds_its_own_heads(tp: int, heads: int) -> None:
    alone = Geometry("rank", QWEN.layers, heads, QWEN.head_dim, QWEN.v_head_dim)
    for codec in codec_names():
        assert by_size(QWEN, codec, 8, tp=tp) == by_size(alone, codec, 8)


@pytest.mark.parametrize("page_size", [1, 16, 64, 1000])
@pytest.mark.parametrize("codec", codec_names())
def test_whole_pages_and_one_of_padding(codec: str, page_size: int) -> None:
    found = by_size(QWEN, codec, 3, page_size=page_size)
    assert found.tokens == found.pages * page_size
    fit = 3 * 10**9 // found.bytes_per_token
    assert found.tokens - page_size <= fit < found.tokens


def test_a_ratio_counts_tokens_and_no_bytes() -> None:
    for codec in codec_names():
        assert by_ratio(QWEN, codec, 2.0, 16_384).tokens == 32_769
        assert by_ratio(QWEN, codec, 0.3, 10_000, page_size=64).tokens == 47 * 64


def test_automatic_sizing_counts_records() -> None:
    # bf16: 4097 slots x 23,040 = 94,394,880 bytes mirror the device pool; of the budget
    # 0.8 x 0.95 may be taken: 76,000,000 / 94,394,880 x 4096 = 3297.8 tokens.
    sized = {codec: automatic(SMOL, codec, 4096, 10**8) for codec in codec_names()}
    assert sized["bf16"].tokens == 3297 + 1
    assert sized["int8"].tokens == 4946 + 1
    assert sized["int8-compact"].tokens == 6088 + 1
    for found in sized.values():
        assert found.bytes_allocated - found.bytes_per_token <= 76_000_000


def test_automatic_sizing_stops_at_twice_the_device() -> None:
    assert automatic_ratio(23_040, 4096, 10**12) == 2.0
    assert automatic(SMOL, "int8", 4096, 10**12, page_size=64).tokens == (8192 // 64 + 1) * 64


def test_a_budget_without_a_whole_byte_is_refused() -> None:
    with pytest.raises(UsageError, match="leaves nothing"):
        automatic_ratio(23_040, 4096, 1, fraction=0.5)


@pytest.mark.parametrize("value", [0, -1])
def test_a_figure_below_one_is_refused(value: int) -> None:
    for call in (
        lambda: by_size(QWEN, "bf16", value),
        lambda: by_size(QWEN, "bf16", 8, page_size=value),
        lambda: by_size(QWEN, "bf16", 8, tp=value),
        lambda: by_ratio(QWEN, "bf16", 2.0, value),
        lambda: automatic(QWEN, "bf16", value, 10**9),
        lambda: automatic(QWEN, "bf16", 4096, value),
        lambda: automatic(QWEN, "bf16", 4096, 10**9, page_size=value),
    ):
        with pytest.raises(UsageError, match=str(value)):
            call()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_ratio_that_is_no_size_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="ratio"):
        by_ratio(QWEN, "bf16", value, 4096)
    with pytest.raises(UsageError, match="fraction"):
        automatic(QWEN, "bf16", 4096, 10**9, fraction=value)


def test_a_head_dim_that_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(UsageError, match="multiple of 8"):
        by_size(Geometry("odd", 4, 2, 60, 60), "int8", 8)


def sized(per_token: int, size: int, ratio: float, device: int, page_size: int) -> Any:
    """Size a real `HostKVCache` of record bytes; `is_dummy` leaves out the allocation."""
    pytest.importorskip("sglang", reason="needs the sglang extra")
    import torch
    from sglang.srt.mem_cache.pool_host.base import HostKVCache

    class Sized(HostKVCache):
        def clear(self) -> None: ...

    # Sizing is all that is asked of it, so the transfers stay abstract.
    Sized.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    return Sized(
        dtype=torch.uint8,
        device_capacity_tokens=device,
        size_per_token=per_token,
        start_layer=0,
        end_layer=1,
        host_to_device_ratio=ratio,
        host_size=size,
        page_size=page_size,
        layout="layer_first",
        pin_memory=False,
        device="cpu",
        is_dummy=True,
    )


# Bytes of Qwen3-8B's 72 records of a token: 8, 4, 2 heads of 128, and one on every rank above.
BY_RANKS = [
    ("bf16", {1: 147_456, 2: 73_728, 4: 36_864, 8: 18_432, 16: 18_432}),
    ("int8", {1: 82_944, 2: 46_080, 4: 27_648, 8: 18_432, 16: 18_432}),
    ("int8-compact", {1: 74_880, 2: 38_016, 4: 19_584, 8: 10_368, 16: 10_368}),
]


@pytest.mark.parametrize("tp", [1, 2, 4, 8, 16])
@pytest.mark.parametrize(("codec", "per_token"), BY_RANKS, ids=lambda value: str(value)[:12])
def test_records_follow_the_local_heads(codec: str, per_token: dict[int, int], tp: int) -> None:
    assert bytes_per_token(QWEN, codec, tp) == per_token[tp]
    assert by_size(QWEN, codec, 8, tp=tp).tokens == 8 * 10**9 // per_token[tp] + 1


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("codec", codec_names())
def test_sglangs_own_constructor_sizes_a_rank(codec: str, tp: int) -> None:
    pool = sized(bytes_per_token(QWEN, codec, tp), 8, 2.0, 16_384, 16)
    ours = by_size(QWEN, codec, 8, page_size=16, tp=tp)
    assert (ours.tokens, ours.pages) == (pool.size, pool.page_num)


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize(
    ("size", "ratio", "device"), [(8, 2.0, 16_384), (0, 1.7, 16_384), (1, 2.0, 100)]
)
@pytest.mark.parametrize("codec", codec_names())
def test_sglangs_own_constructor_agrees(
    codec: str, size: int, ratio: float, device: int, page_size: int
) -> None:
    pool = sized(bytes_per_token(SMOL, codec), size, ratio, device, page_size)
    ours = (
        by_size(SMOL, codec, size, page_size=page_size)
        if size
        else by_ratio(SMOL, codec, ratio, device, page_size=page_size)
    )
    assert (ours.tokens, ours.pages) == (pool.size, pool.page_num)


@pytest.mark.parametrize("page_size", [1, 64])
def test_the_automatic_ratio_divides_by_the_device_pools_bytes(page_size: int) -> None:
    """For `bf16` records and device rows are equal, so a real device pool can be asked."""
    pytest.importorskip("sglang", reason="needs the sglang extra")
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = MHATokenToKVPool(
        size=256,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=SMOL.kv_heads,
        head_dim=SMOL.head_dim,
        layer_num=SMOL.layers,
        device="cpu",
        enable_memory_saver=False,
    )
    device_bytes = sum(pool.get_kv_size_bytes())
    budget = 5_000_000
    ours = automatic_ratio(23_040, 256, budget, fraction=0.8, page_size=page_size)
    assert ours == int(budget * 0.8) * (1 - 0.05) / device_bytes < 2.0


def test_the_table_shows_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--geometry", "qwen3-8b", "--hicache-size", "8") == 0
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[2:]}
    assert rows == {
        "bf16": ["147,456", "54,254", "8,000,077,824", "1.00"],
        "int8": ["82,944", "96,451", "8,000,031,744", "1.78"],
        "int8-compact": ["74,880", "106,838", "8,000,029,440", "1.97"],
        "exact": ["115,200", "69,445", "8,000,064,000", "1.28"],
        "k8v8": ["78,336", "102,125", "8,000,064,000", "1.88"],
        "k8v4": ["59,904", "133,548", "8,000,059,392", "2.46"],
        "k6v5": ["55,296", "144,676", "8,000,004,096", "2.67"],
        "k6v4": ["50,688", "157,829", "8,000,036,352", "2.91"],
        "k5v4": ["46,080", "173,612", "8,000,040,960", "3.20"],
        "k4v4": ["42,048", "190,259", "8,000,010,432", "3.51"],
    }


def test_the_table_says_that_it_is_for_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    run("--geometry", "qwen3-8b", "--hicache-size", "8", "--tp", "2")
    out = capsys.readouterr().out
    assert "one of the 2 ranks of a host" in out
    assert "4 of the 8 KV heads" in out


def test_a_codec_that_gains_nothing_is_said_with_the_one_to_use(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ("--geometry", "Qwen/Qwen3-8B", "--hicache-size", "8", "--tp", "8")
    assert run(*flags) == 0
    out = capsys.readouterr().out
    assert "all of them together take 64.0 GB of host memory" in out
    assert "Note: int8 (1.00 x): no gain" in out and "use int8-compact (1.78 x)" in out
    assert run(*flags, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["notes"]) == 1
    assert [round(row["bytes_all_ranks"] / 1e9) for row in report["codecs"]] == [64] * 10
    # Whatever the way of sizing: by a ratio all codecs hold the same tokens.
    ratio = ("--geometry", "qwen3-8b", "--hicache-ratio", "2", "--device-tokens", "4096")
    run(*ratio)
    assert "no gain" not in capsys.readouterr().out
    run(*ratio, "--tp", "8")
    out = capsys.readouterr().out
    assert "use int8-compact" in out and "GB (bf16), " in out


def test_the_table_says_what_it_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"num_hidden_layers": 4, "num_attention_heads": 16, "hidden_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps(config))
    run("--geometry", str(tmp_path), "--hicache-size", "1")
    out = capsys.readouterr().out
    assert "Note: the number of KV heads is not given: 16" in out
    assert "Note: head_dim is not given: 64" in out


def test_an_option_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unknown option --geometri, did you mean --geometry"):
        run("--geometri", "qwen3-8b", "--hicache-size=8")
    with pytest.raises(UsageError, match="unknown option --whatever "):
        run("--geometry", "qwen3-8b", "--whatever=8")
    assert run("--geom", "qwen3-8b", "--hicache-size=8") == 0  # argparse takes beginnings


def test_the_table_shows_k_and_v_where_they_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    run("--geometry", str(tmp_path), "--hicache-size", "1")
    assert "head_dim 192 (K), 128 (V)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--hicache-size", "8", "--page-size", "64"], lambda c: by_size(QWEN, c, 8, page_size=64)),
        (
            ["--hicache-ratio", "1.5", "--device-tokens", "16384", "--tp", "4"],
            lambda c: by_ratio(QWEN, c, 1.5, 16_384, tp=4),
        ),
        (
            ["--device-tokens", "16384", "--host-budget", "3000000000"],
            lambda c: automatic(QWEN, c, 16_384, 3 * 10**9),
        ),
        (
            ["--device-tokens", "9", "--host-budget", "90000000", "--host-memory-fraction", "0.1"],
            lambda c: automatic(QWEN, c, 9, 90_000_000, fraction=0.1),
        ),
    ],
    ids=["size", "ratio", "automatic", "automatic with a fraction"],
)
def test_json_carries_the_same_figures(
    flags: list[str], expected: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--geometry", "qwen3-8b", "--json", *flags) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["codec"] for row in report["codecs"]] == list(listed_codecs())
    for row in report["codecs"]:
        found = expected(row["codec"])
        assert row["tokens"] == found.tokens
        assert row["bytes_allocated"] == found.bytes_allocated
        assert row["times_bf16"] == found.tokens / expected("bf16").tokens
    assert report["geometry"]["kv_heads"] == 8


def test_a_pool_of_windows_is_counted_beside_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--geometry", "gpt-oss-120b", "--hicache-size", "8")
    assert run(*arguments, "--disable-hybrid-swa-memory") == 0
    assert "36 layers, 8 KV heads, head_dim 64" in capsys.readouterr().out
    assert run(*arguments, "--json") == 0
    tokens, windows = json.loads(capsys.readouterr().out)["codecs"]["int8-compact"]
    # 18 layers each, 8 heads of 64: 528 bytes a record; SGLang's ratio of 0.8.
    assert tokens["slot_bytes"] == windows["slot_bytes"] == 18 * 2 * 528
    assert windows["slots"] / tokens["slots"] == pytest.approx(0.8, abs=1e-5)
    assert 0 <= tokens["bytes"] + windows["bytes"] - 8e9 <= 2 * 19_008
    assert run(*arguments, "--split", "kv=0.5,swa=0.5", "--json") == 0
    tokens, windows = json.loads(capsys.readouterr().out)["codecs"]["int8-compact"]
    assert windows["slots"] == tokens["slots"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--hicache-ratio", "2", "--device-tokens", "9"),
            "several pools, which are counted",
        ),
        (("--hicache-size", "8", "--split", "kv=2"), "--split 'kv=2': expected parts that add up"),
        (("--hicache-size", "8", "--split", "kv=0.5,state=0.5"), "but this model has kv, swa"),
        (("--hicache-size", "8", "--tokens-per-state", "0"), "must be at least 1, got 0"),
    ],
)
def test_what_says_nothing_of_several_pools_is_refused(
    arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError) as refused:
        run("--geometry", "gpt-oss-120b", *arguments)
    assert words in str(refused.value)


def test_the_page_of_models_is_what_its_generator_writes(tmp_path: Path) -> None:
    docs = Path(__file__).parents[2] / "docs"
    out = tmp_path / "models.md"
    subprocess.run([sys.executable, docs / "generate_models.py", "--out", out], check=True)
    assert out.read_text() == (docs / "models.md").read_text(), "run make models"
    for codec, tokens in (("bf16", "54,254"), ("exact", "69,445"), ("int8-compact", "106,838")):
        assert f"`{codec}` tokens" in out.read_text()
        assert tokens in next(line for line in out.read_text().splitlines() if "qwen3-8b" in line)
