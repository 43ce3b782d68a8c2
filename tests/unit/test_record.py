"""Record arithmetic: the published sizes, the parts of a record, the refusals, no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hiqcache.codec.catalog import codec_entry, codec_names
from hiqcache.codec.record import SIDES, Side
from hiqcache.errors import UsageError


@pytest.mark.parametrize(
    ("codec", "heads", "head_dim", "payload", "scales", "record"),
    [
        ("bf16", 8, 128, 2048, 0, 2048),
        ("int8", 8, 128, 1024, 16, 1152),
        ("int8-compact", 8, 128, 1024, 16, 1040),
        ("bf16", 3, 64, 384, 0, 384),
        ("int8", 3, 64, 192, 6, 256),
        ("int8-compact", 3, 64, 192, 6, 208),
        ("int8", 4, 128, 512, 8, 640),
        ("int8", 1, 8, 8, 2, 128),
        ("int8-compact", 1, 8, 8, 2, 16),
        ("int8", 1, 96, 96, 2, 128),
        ("int8", 2, 136, 272, 4, 384),
    ],
)
def test_layout_matches_hand_arithmetic(
    codec: str, heads: int, head_dim: int, payload: int, scales: int, record: int
) -> None:
    layout = codec_entry(codec).layout("k", heads, head_dim)
    assert (layout.heads, layout.head_dim) == (heads, head_dim)
    assert (layout.payload_bytes, layout.scales_bytes) == (payload, scales)
    assert layout.record_bytes == record
    assert layout.used_bytes == payload + scales
    assert layout.padding_bytes == record - payload - scales


@pytest.mark.parametrize(
    ("codec", "qwen3_8b", "smollm2_135m"),
    [("bf16", 147_456, 23_040), ("int8", 82_944, 15_360), ("int8-compact", 74_880, 12_480)],
)
def test_bytes_per_token_are_the_published_ones(
    codec: str, qwen3_8b: int, smollm2_135m: int
) -> None:
    entry = codec_entry(codec)
    for layers, heads, head_dim, total in ((36, 8, 128, qwen3_8b), (30, 3, 64, smollm2_135m)):
        sides = [entry.layout(side, heads, head_dim).record_bytes for side in SIDES]
        assert layers * sum(sides) == total


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("codec", codec_names())
def test_records_are_aligned_and_no_larger_than_that_takes(codec: str, side: Side) -> None:
    alignment = 128 if codec == "int8" else 16
    for heads in range(1, 20):
        for head_dim in range(8, 264, 8):
            layout = codec_entry(codec).layout(side, heads, head_dim)
            assert layout.record_bytes % alignment == 0
            assert 0 <= layout.padding_bytes < alignment


def test_part_of_names_the_part_at_each_border() -> None:
    layout = codec_entry("int8").layout("k", 8, 128)
    parts = [layout.part_of(byte) for byte in (0, 1023, 1024, 1039, 1040, 1151)]
    assert parts == ["payload", "payload", "scales", "scales", "padding", "padding"]


@pytest.mark.parametrize(
    ("codec", "heads", "head_dim", "words"),
    [
        ("int4", 8, 128, ("'int4'", "bf16, int8, int8-compact")),
        ("int8", 0, 128, ("at least 1", "got 0")),
        ("int8", -1, 128, ("at least 1", "got -1")),
        ("int8", 8, 0, ("multiple of 8", "got 0")),
        ("int8", 8, 100, ("multiple of 8", "got 100")),
        ("bf16", 8, -8, ("multiple of 8", "got -8")),
    ],
)
def test_refusals_say_what_was_expected_and_got(
    codec: str, heads: int, head_dim: int, words: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refusal:
        codec_entry(codec).layout("k", heads, head_dim)
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


@pytest.mark.parametrize("module", ["hiqcache.codec.catalog", "hiqcache.lab.commands.bench"])
def test_module_does_not_import_torch(module: str) -> None:
    # The second half shows that the probe can see torch at all.
    program = (
        f"import sys, {module}; assert 'torch' not in sys.modules, 'torch was imported'; "
        "import hiqcache.codec.base; assert 'torch' in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
