"""Conformance vectors: rows, their records and what comes back, to be met bit for bit.

A file made on one device and checked on another shows that both encode alike, which is what
lets a record written by one process be read by any other. It is self-contained JSON: every
byte is in it (base64), so that checking needs no random numbers and can name the first byte
that differs. Inputs are made on the CPU and moved to the device.

    {"format": "hiqcache-conformance", "version": 2, "provenance": {...},
     "inputs": {"random_unit 4x8x128": {"name", "seed", "tokens", "heads", "head_dim", "dtype",
                                        "rows"}},
     "vectors": [{"codec", "side", "input", "records", "decoded"}]}
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hiqcache.codec.catalog import codec_names
from hiqcache.codec.inputs import INPUTS, Shape, named_input
from hiqcache.codec.record import SIDES, RecordLayout, Side
from hiqcache.codec.registry import get_codec
from hiqcache.codec.row import BF16, ROW_TYPES
from hiqcache.errors import HiQCacheError, UsageError
from hiqcache.provenance import cpu_model, provenance

FORMAT = "hiqcache-conformance"
VERSION = 2
DEVICES = ("cpu", "cuda", "mps")
SEED = 0
SHAPES: tuple[Shape, ...] = ((4, 8, 128), (3, 3, 64), (5, 1, 80))
PATTERN_SHAPE: Shape = (64, 8, 128)
"""64 x 8 x 128 = 2^16: each 16-bit pattern once."""
FP8_SHAPES = (SHAPES[1], PATTERN_SHAPE)
"""The arithmetic is the same: fewer show that the conversions are."""
PATTERN_INPUTS = ("all_patterns", "scattered_patterns")


@dataclass(frozen=True)
class VectorResult:
    """One vector, checked. `difference` says where the first byte differs; None if none does."""

    codec: str
    side: Side
    input: str
    difference: str | None


def resolve_device(name: str) -> torch.device:
    """The device of that name, if this machine has it.

    Raises
    ------
    UsageError
        An unknown name, or a device that PyTorch cannot use here.
    """
    if name not in DEVICES:
        raise UsageError(f"unknown device {name!r}: expected one of {', '.join(DEVICES)}")
    present = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not present[name]:
        raise UsageError(f"PyTorch {torch.__version__} finds no {name} device here; use cpu")
    return torch.device(name)


def made_by(device: torch.device) -> dict[str, str]:
    """The provenance of vectors computed on a device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    return provenance(device.type, name)


def generate(device: torch.device) -> dict[str, Any]:
    """Make every vector on a device.

    Returns
    -------
    dict
        The document described above, ready for `json.dumps`.
    """
    inputs: dict[str, Any] = {}
    vectors: list[dict[str, str]] = []
    for kind, (name, shape) in itertools.product(ROW_TYPES.values(), _cases()):
        if kind.value_bytes == 1 and shape not in FP8_SHAPES:
            continue
        rows = named_input(name, shape, SEED, kind.dtype)
        key = f"{name} {'x'.join(map(str, shape))}" + ("" if kind is BF16 else f" {kind.name}")
        tokens, heads, head_dim = shape
        inputs[key] = {"name": name, "seed": SEED, "tokens": tokens, "heads": heads}
        inputs[key] |= {"head_dim": head_dim, "dtype": kind.name, "rows": _pack(rows)}
        seen = set()
        for codec in map(get_codec, codec_names()):
            if kind.name not in codec.entry.row_types:
                continue
            # One vector for K and V where they share a layout, and for codecs that share a record.
            sides = {
                codec.layout(side, heads, head_dim, kind.value_bytes): side
                for side in reversed(SIDES)
            }
            for layout, side in sides.items():
                record = (codec.entry.implementation, layout)
                if record in seen:
                    continue
                seen.add(record)
                records = codec.encode(rows.to(device), layout)
                decoded = codec.decode(records, layout, dtype=kind.dtype)
                vector = {"codec": codec.name, "side": side, "input": key}
                vector |= {"records": _pack(records)}
                vectors.append(vector | {"decoded": _pack(decoded)})
    return {
        "format": FORMAT,
        "version": VERSION,
        "provenance": made_by(device),
        "inputs": inputs,
        "vectors": vectors,
    }


def load(path: Path) -> dict[str, Any]:
    """Read a file of vectors.

    Raises
    ------
    UsageError
        It is missing, is not such a file, is of another version, or holds no vectors.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a conformance file: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f'{path} is not a conformance file: it lacks "format": "{FORMAT}"')
    if document.get("version") != VERSION:
        got = document.get("version")
        raise UsageError(f"{path} has version {got!r}, expected {VERSION}; generate it again")
    if not document.get("vectors"):
        raise UsageError(f"{path} holds no vectors, so it proves nothing; generate it again")
    return document


def check(document: dict[str, Any], device: torch.device) -> list[VectorResult]:
    """Encode and decode every vector of a loaded file here, and compare each byte.

    Decoding starts from the file's records, so a wrong encoder cannot hide a right decoder.

    Raises
    ------
    UsageError
        A vector that does not say what it should: a missing field, a codec or geometry that
        does not exist, bytes that are not base64 or not of the length that the layout gives.
    """
    results = []
    for index, vector in enumerate(document["vectors"]):
        try:
            results.append(_check_vector(document["inputs"], vector, device))
        except (KeyError, TypeError, ValueError, HiQCacheError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise UsageError(f"garbled conformance file: vector {index}: {reason}") from None
    return results


def _cases() -> Iterator[tuple[str, Shape]]:
    for name in INPUTS:
        yield from ((name, shape) for shape in SHAPES)
    yield from ((name, PATTERN_SHAPE) for name in PATTERN_INPUTS)


def _check_vector(
    inputs: dict[str, Any], vector: dict[str, Any], device: torch.device
) -> VectorResult:
    source = inputs[vector["input"]]
    shape = (source["tokens"], source["heads"], source["head_dim"])
    if not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(f"tokens, heads and head_dim are {shape}, expected positive integers")
    kinds = {kind.name: kind for kind in ROW_TYPES.values()}
    if source["dtype"] not in kinds:
        raise ValueError(f"dtype is {source['dtype']!r}, expected one of {', '.join(kinds)}")
    kind = kinds[source["dtype"]]
    dtype = kind.dtype
    codec, side = get_codec(vector["codec"]), vector["side"]
    layout = codec.layout(side, shape[1], shape[2], kind.value_bytes)
    tokens, row_bytes = shape[0], shape[1] * shape[2] * kind.value_bytes
    rows = _unpack(source["rows"], tokens, row_bytes).view(dtype).view(shape)
    records = _unpack(vector["records"], tokens, layout.record_bytes)
    decoded = _unpack(vector["decoded"], tokens, row_bytes)

    encoded_here = codec.encode(rows.to(device), layout)
    decoded_here = codec.decode(records.to(device), layout, dtype=dtype)
    difference = _difference("records", records, _bytes(encoded_here), layout)
    difference = difference or _difference("decoded rows", decoded, _bytes(decoded_here), None)
    return VectorResult(codec.name, side, vector["input"], difference)


def _difference(
    what: str, expected: Tensor, got: Tensor, layout: RecordLayout | None
) -> str | None:
    """Both `[tokens, bytes]` uint8. The first byte that differs, in words."""
    places = (expected != got).nonzero()
    if not len(places):
        return None
    token, byte = places[0].tolist()
    part = "" if layout is None else f", {layout.part_of(byte)}"
    return (
        f"{what}: first differing byte {token * expected.shape[1] + byte} "
        f"(token {token}, byte {byte}{part}): expected {int(expected[token, byte]):#04x}, "
        f"got {int(got[token, byte]):#04x}; {len(places)} of {expected.numel()} bytes differ"
    )


def _bytes(tensor: Tensor) -> Tensor:
    """`[tokens, bytes]` uint8 on the CPU."""
    return tensor.cpu().contiguous().flatten(1).view(torch.uint8)


def _pack(tensor: Tensor) -> str:
    return base64.b64encode(bytes(_bytes(tensor).flatten().tolist())).decode("ascii")


def _unpack(text: str, tokens: int, row_bytes: int) -> Tensor:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None
    if len(raw) != tokens * row_bytes:
        raise ValueError(f"{len(raw)} bytes where {tokens} x {row_bytes} were expected")
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(tokens, row_bytes)
