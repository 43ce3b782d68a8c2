"""A codec that only this file knows is found by everything that names codecs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from hiqcache import capacity, cli
from hiqcache.codec import conformance
from hiqcache.codec.base import Codec
from hiqcache.codec.catalog import (
    CATALOG,
    RECOMMENDED,
    CodecEntry,
    codec_entry,
    codec_names,
    lossy_codecs,
)
from hiqcache.codec.record import RecordFormat, RecordLayout, Verbatim
from hiqcache.codec.registry import get_codec
from hiqcache.config import Config
from hiqcache.geometry import Geometry
from hiqcache.lab.commands.quality_shared import codecs as quality_codecs
from hiqcache.pod.checks.memory import Memory, check_largest
from hiqcache.ranks import Ranks
from hiqcache.sidecar.figures import read_figures

NAME = "upper-byte"


class UpperByte(RecordFormat):
    def layout(self, heads: int, head_dim: int, value_bytes: int) -> RecordLayout:
        return RecordLayout(heads, head_dim, heads * head_dim, 0, heads * head_dim)


class UpperByteCodec(Codec):
    """Keeps sign, exponent and no fraction to speak of: K as it is, V as its upper bytes."""

    def _encode(self, rows: Tensor, layout: RecordLayout, out: Tensor) -> None:
        step = 2 if layout.value_bits == 8 else 1
        values = rows.contiguous().view(torch.uint8).flatten(1)
        out[:, : layout.payload_bytes] = values[:, step - 1 :: step]

    def _decode(self, records: Tensor, layout: RecordLayout, out: Tensor) -> None:
        step = 2 if layout.value_bits == 8 else 1
        values = torch.zeros(len(out), layout.payload_bytes * step, dtype=torch.uint8)
        values[:, step - 1 :: step] = records[:, : layout.payload_bytes]
        out.copy_(values.view(out.dtype).view(out.shape))


ENTRY = CodecEntry(
    name=NAME,
    implementation=f"{__name__}:UpperByteCodec",
    label="for this test",
    k=Verbatim(),
    v=UpperByte(),
    record_version=7,
    marks_broken_heads=False,
)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(CATALOG, NAME, ENTRY)
    yield


def test_the_registry_makes_it_and_its_sides_differ() -> None:
    codec = get_codec(NAME)
    k, v = (codec.layout(side, 8, 128) for side in ("k", "v"))  # type: ignore[arg-type]
    assert (k.record_bytes, v.record_bytes) == (2048, 1024)
    rows = torch.ones(2, 8, 128, dtype=torch.bfloat16)
    assert torch.equal(codec.decode(codec.encode(rows, k), k), rows)
    assert torch.equal(codec.decode(codec.encode(rows, v), v), rows / 2)


def test_the_environment_takes_it() -> None:
    assert Config.from_env({"HIQCACHE_CODEC": NAME}).codec == NAME


def test_capacity_counts_k_and_v_apart() -> None:
    assert capacity.bytes_per_token(Geometry.load("qwen3-8b"), NAME) == 36 * (2048 + 1024)


@pytest.mark.parametrize(
    "command",
    [
        ["capacity", "--geometry", "qwen3-8b", "--hicache-size", "8", "--json"],
        ["bench", "codec", "--help"],
        ["bench", "transfer", "--help"],
        ["bench", "tpot", "--help"],
    ],
    ids=" ".join,
)
def test_commands_offer_it(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        cli.main(command)
    assert NAME in capsys.readouterr().out


def test_quality_takes_it() -> None:
    assert quality_codecs(NAME) == (NAME,)
    assert NAME in lossy_codecs()


def test_the_simulator_replays_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    request = {"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}
    trace.write_text(json.dumps(request) + "\n")
    command = ["simulate", "--geometry", "qwen3-8b", "--l1-tokens", "4096", "--hicache-size", "1"]
    assert cli.main([*command, "--json", str(trace)]) == 0
    codecs = [row["codec"] for row in json.loads(capsys.readouterr().out)["codecs"]]
    assert NAME in codecs


def test_doctor_sizes_it() -> None:
    memory = Memory(free=200 * 10**9, limit=None, in_use=None, room=None)
    plan = SimpleNamespace(
        geometry=lambda: Geometry.load("qwen3-8b"), page_size=1, ranks=Ranks(), enabled=True
    )
    assert f"tokens in {NAME}" in check_largest(plan, memory).line()  # type: ignore[arg-type]


def test_the_sidecar_passes_its_name_on() -> None:
    info = f'hiqcache_engine_pool_info{{codec="{NAME}",transfer="torch",page_size="1"}} 1'
    figures = read_figures(f"sglang:startup_time_seconds 1\n{info}\n")
    assert figures.pool is not None and figures.pool["codec"] == NAME


def test_conformance_has_its_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "SHAPES", conformance.SHAPES[1:2])
    monkeypatch.setattr(conformance, "PATTERN_INPUTS", ())
    vectors = [
        v for v in conformance.generate(torch.device("cpu"))["vectors"] if v["codec"] == NAME
    ]
    assert {vector["side"] for vector in vectors} == {"k", "v"}


def test_each_codec_has_a_record_version_of_its_own() -> None:
    assert get_codec(NAME).entry.record_version == 7
    assert all(codec_entry(name).record_version == 1 for name in codec_names() if name != NAME)
    assert RECOMMENDED in lossy_codecs()
