"""Conformance vectors: reproducible, complete, and impossible to pass with a wrong codec."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiqcache import cli
from hiqcache.codec import conformance, int8
from hiqcache.codec.catalog import codec_entry, codec_names
from hiqcache.codec.inputs import INPUTS
from hiqcache.codec.int8 import dequantize
from hiqcache.codec.record import SIDES, RecordFormat
from hiqcache.errors import UsageError
from hiqcache.lab.bench.codec import one_thread

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def single_thread() -> Iterator[None]:
    # On a busy machine PyTorch's threads wait for each other far longer than they work.
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def only_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", {"conformance": cli.PRODUCT})


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return conformance.generate(CPU)


@pytest.fixture
def document(made: dict[str, Any]) -> dict[str, Any]:
    """A few vectors of every kind, free to damage."""
    few = copy.deepcopy(made)
    few["vectors"] = [
        vector
        for vector in few["vectors"]
        if vector["input"].endswith("3x3x64") and vector["input"].split()[0] in ("nan", "subnormal")
    ]
    return few


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def flip(document: dict[str, Any], codec: str, field: str, byte: int) -> None:
    """Change one bit of one vector's field."""
    vector = next(v for v in document["vectors"] if v["codec"] == codec)
    raw = bytearray(base64.b64decode(vector[field]))
    raw[byte] ^= 1
    vector[field] = base64.b64encode(raw).decode()


def implementation(codec: str) -> str:
    return codec_entry(codec).implementation


def form(codec: str, side: str) -> RecordFormat:
    return codec_entry(codec).k if side == "k" else codec_entry(codec).v


def test_vectors_cover_every_record_and_input(made: dict[str, Any]) -> None:
    sources = [(v["codec"], v["side"], made["inputs"][v["input"]]) for v in made["vectors"]]
    covered = {
        (implementation(codec), form(codec, side), source["name"], source["dtype"])
        for codec, side, source in sources
    }
    assert covered == {
        (implementation(codec), form(codec, side), source, row)
        for codec in codec_names()
        for side in SIDES
        for source in INPUTS
        for row in codec_entry(codec).row_types
    }
    geometries = {(i["heads"], i["head_dim"]) for i in made["inputs"].values()}
    assert {(8, 128), (3, 64), (1, 80)} <= geometries
    for name in ("all_patterns 64x8x128", "all_patterns 64x8x128 float16"):
        raw = base64.b64decode(made["inputs"][name]["rows"])
        patterns = {raw[i : i + 2] for i in range(0, len(raw), 2)}
        assert len(patterns) == 2**16


def test_vectors_are_the_pinned_ones(made: dict[str, Any]) -> None:
    # Holds inputs, records and decoded rows of every machine and release to the same bits. A
    # change here is a change of the record format.
    for (family, dtype), pinned in PINNED.items():
        inputs = {
            key: {field: value for field, value in source.items() if field != "dtype"}
            for key, source in made["inputs"].items()
            if source["dtype"] == dtype
        }
        vectors = [
            vector
            for vector in made["vectors"]
            if vector["input"] in inputs and vector["codec"].startswith(family)
        ]
        text = json.dumps([inputs, vectors], sort_keys=True)
        assert hashlib.sha256(text.encode()).hexdigest() == pinned, (family, dtype)


def test_provenance_says_what_made_the_file(made: dict[str, Any]) -> None:
    assert made["provenance"]["torch"] == version("torch")
    assert made["provenance"]["device"] == "cpu"
    assert made["provenance"]["device_name"]


def test_generated_file_checks_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vectors.json"
    assert cli.main(["conformance", "generate", "--device", "cpu", "--out", str(path)]) == 0
    count = len(json.loads(path.read_text())["vectors"])
    assert f"wrote {count} vectors" in capsys.readouterr().out
    written = path.read_bytes()
    assert "exists already: move it away" in refused(["generate", "--out", str(path)], capsys)
    assert path.read_bytes() == written
    assert cli.main(["conformance", "check", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count + 1
    assert all(line.startswith("equal ") for line in lines[:-1])
    assert lines[-1] == f"{count} vectors checked on cpu, 0 differ"


@pytest.mark.parametrize(
    ("codec", "field", "byte", "words"),
    [
        ("int8", "records", 0, ("records", "byte 0 (token 0, byte 0, payload)")),
        ("int8", "records", 256 + 195, ("byte 451 (token 1, byte 195, scales)", "1 of 768 bytes")),
        ("int8", "records", 767, ("byte 767 (token 2, byte 255, padding)", "0x01, got 0x00")),
        ("int8-compact", "decoded", 385, ("decoded rows", "byte 385 (token 1, byte 1)")),
        ("bf16", "records", 5, ("records", "byte 5 (token 0, byte 5, payload)")),
    ],
)
def test_one_wrong_bit_is_found_and_named(
    document: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    codec: str,
    field: str,
    byte: int,
    words: tuple[str, ...],
) -> None:
    flip(document, codec, field, byte)
    assert cli.main(["conformance", "check", write(tmp_path / "v.json", document)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    differing = [line for line in lines if line.startswith("DIFFERS")]
    assert len(differing) == 1 and codec in differing[0]
    assert all(word in differing[0] for word in words), differing[0]
    assert last.endswith("1 differ")


def half_away(rows: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    quotient = rows.float() / scale.float().unsqueeze(-1)
    rounded = (quotient.sign() * (quotient.abs() + 0.5).floor()).nan_to_num(nan=0.0)
    q = rounded.clamp(-127, 127).to(torch.int8)
    return q if out is None else out.copy_(q)


def by_reciprocal(rows: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    quotient = rows.float() * (1.0 / scale.float()).unsqueeze(-1)
    q = quotient.nan_to_num(nan=0.0).round().clamp(-127, 127).to(torch.int8)
    return q if out is None else out.copy_(q)


def device_nan(q: Tensor, scale: Tensor, out: Tensor | None = None) -> Tensor:
    rows = (q.float() * scale.float().unsqueeze(-1)).bfloat16()
    rows = torch.where(rows.isnan(), torch.tensor(0x7FFF).to(torch.int16), rows.view(torch.int16))
    return rows.view(torch.bfloat16) if out is None else out.copy_(rows.view(torch.bfloat16))


def unsaturated(
    q: Tensor, scale: Tensor, out: Tensor | None = None, dtype: torch.dtype = torch.bfloat16
) -> Tensor:
    return dequantize(q, scale, out, dtype).copy_(q.float() * scale.float().unsqueeze(-1))


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("quantize", half_away),
        ("quantize", by_reciprocal),
        ("dequantize", device_nan),
        ("dequantize", unsaturated),
    ],
    ids=["half away from zero", "multiplied by a reciprocal", "another NaN", "infinity in FP16"],
)
def test_a_codec_that_differs_in_one_habit_fails(
    made: dict[str, Any], monkeypatch: pytest.MonkeyPatch, function: str, wrong: Any
) -> None:
    assert not any(result.difference for result in conformance.check(made, CPU))
    monkeypatch.setattr(int8, function, wrong)
    results = conformance.check(made, CPU)
    assert any(result.difference for result in results)
    assert not any(result.difference for result in results if result.codec == "bf16")


def test_json_report(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(document, "int8", "records", 0)
    path = write(tmp_path / "v.json", document)
    assert cli.main(["conformance", "check", path, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["checked"] == len(document["vectors"]) == len(report["vectors"])
    assert report["differing"] == 1
    assert report["made_by"] == document["provenance"]
    assert report["checked_by"]["device"] == "cpu"
    assert sum(vector["difference"] is not None for vector in report["vectors"]) == 1


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must end with exit code 2 and one line on stderr; return the line."""
    assert cli.main(["conformance", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "not a conformance file"),
        ("{", "not a conformance file"),
        ("[" * 100_000, "not a conformance file"),
        ("[1, 2]", "lacks"),
        ("{}", "lacks"),
        ('{"format": "hiqcache-conformance", "version": 99}', "version 99, expected 2"),
        ('{"format": "hiqcache-conformance", "version": 2}', "no vectors"),
        ('{"format": "hiqcache-conformance", "version": 2, "vectors": []}', "no vectors"),
        ('{"format": "hiqcache-conformance", "version": 2, "vectors": [{}]}', "garbled"),
        ('{"format": "hiqcache-conformance", "version": 2, "vectors": "none"}', "garbled"),
    ],
)
def test_files_that_are_no_vectors_are_refused(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "v.json"
    if content is not None:
        path.write_text(content)
    assert words in refused(["check", str(path)], capsys)


def test_binary_file_and_folder_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(bytes(range(256)))
    assert "not a conformance file" in refused(["check", str(path)], capsys)
    assert "Is a directory" in refused(["check", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("codec", "int4", "unknown codec"),
        ("side", "q", "side: expected"),
        ("input", "nothing", "no 'nothing'"),
        ("records", "****", "not base64"),
        ("records", "AAAA", "3 bytes where 3 x"),
        ("decoded", "", "0 bytes where 3 x 384"),
        ("decoded", 7, "vector 2"),
        ("codec", ["int8"], "vector 2"),
        ("records", None, "vector 2"),
    ],
)
def test_garbled_vectors_are_refused(
    document: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: Any,
    words: str,
) -> None:
    document["vectors"][2][field] = value
    path = write(tmp_path / "v.json", document)
    assert words in refused(["check", path], capsys)
    del document["vectors"][2][field]
    assert f"no '{field}'" in refused(["check", write(tmp_path / "v.json", document)], capsys)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tokens", 0), ("tokens", 2), ("heads", -3), ("head_dim", "64"), ("dtype", "float32")],
)
def test_garbled_inputs_are_refused(
    document: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    field: str,
    value: Any,
) -> None:
    document["inputs"][document["vectors"][0]["input"]][field] = value
    path = write(tmp_path / "v.json", document)
    assert "garbled" in refused(["check", path], capsys)


def test_vectors_of_no_tokens_prove_nothing(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source in document["inputs"].values():
        source |= {"tokens": 0, "rows": ""}
    for vector in document["vectors"]:
        vector |= {"records": "", "decoded": ""}
    path = write(tmp_path / "v.json", document)
    assert "expected positive integers" in refused(["check", path], capsys)


def test_bad_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice" in refused(["generate", "--device", "tpu"], capsys)
    missing = str(tmp_path / "no" / "v.json")
    assert "cannot write" in refused(["generate", "--out", missing], capsys)
    for device, present in (
        ("cuda", torch.cuda.is_available()),
        ("mps", torch.backends.mps.is_available()),
    ):
        if not present:
            assert f"no {device} device" in refused(["generate", "--device", device], capsys)
            assert f"no {device} device" in refused(["check", "x", "--device", device], capsys)
    with pytest.raises(UsageError, match="unknown device 'tpu': expected one of cpu, cuda, mps"):
        conformance.resolve_device("tpu")


def test_record_lengths_in_the_file_follow_the_layout(made: dict[str, Any]) -> None:
    for vector in made["vectors"]:
        source = made["inputs"][vector["input"]]
        layout = codec_entry(vector["codec"]).layout(
            vector["side"],
            source["heads"],
            source["head_dim"],
            1 if source["dtype"].startswith("float8") else 2,
        )
        assert len(base64.b64decode(vector["records"])) == source["tokens"] * layout.record_bytes


PINNED = {
    (("bf16", "int8"), "bfloat16"): (
        "af0109718bc672ae124e9cc3108ef5453f7718e09c651c1478536e0bf43b5250"
    ),
    (("bf16", "int8"), "float16"): (
        "4583f753e6b035c27b4497eb8fecde8c8d70899db700032392fb17efa585ce27"
    ),
    (("exact",), "bfloat16"): ("d2de6d8a6751222042c387fb5b64149ae60830aec0c03a32e813e9dd78466e2f"),
    (("k",), "bfloat16"): ("6db7ee19de8c635bebbe18fcb752f21a966bb7892b19fba0dc90968c46ae3694"),
    (("k",), "float16"): ("68a01e28d4993f3e88e87dae89a64c29cc9006f99219dbbea14d9dbb79dc2943"),
    (("bf16", "k"), "float8_e4m3fn"): (
        "2985c4d73b3668eb29ddf98f5a634641f831d99aa16b5141103ab26967acb68c"
    ),
    (("bf16", "k"), "float8_e5m2"): (
        "6704c0669b03f160d81cb84446bf80ec4dba3675e9b74b1135b97734be1110e3"
    ),
}
"""Of which codecs, by the beginnings of their names, and of which rows."""
