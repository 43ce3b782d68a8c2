"""What is said of a codec on a model that nobody has measured."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hiqcache.codec.advice import k_bias_norms, warning

LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32}
SMOLLM2 = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30}
QWEN2 = {"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28}


def write_biases(folder: Path, dtype: str, *layers: list[float]) -> None:
    """A checkpoint of one file that holds the biases of K and a weight."""
    header, raw = {}, b""
    for layer, values in enumerate(layers):
        if dtype == "BF16":
            data = b"".join(struct.pack("<f", value)[2:] for value in values)
        else:
            data = struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'f'}", *values)
        name = f"model.layers.{layer}.self_attn.k_proj.bias"
        offsets = [len(raw), len(raw) + len(data)]
        header[name] = {"dtype": dtype, "shape": [len(values)], "data_offsets": offsets}
        raw += data
    header["lm_head.weight"] = {"dtype": "I8", "shape": [1], "data_offsets": [len(raw)] * 2}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + raw)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_norms_are_read_from_every_type(tmp_path: Path, dtype: str) -> None:
    write_biases(tmp_path, dtype, [300.0, -400.0, 0.0], [0.5, 0.0])
    assert k_bias_norms(tmp_path) == [500.0, 0.5]


@pytest.mark.parametrize("raw", [b"", b"\xff" * 64, struct.pack("<Q", 4) + b"null", b"\x02" * 9])
def test_what_is_no_checkpoint_has_no_norms(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw)
    assert k_bias_norms(tmp_path) == []


def test_a_model_with_a_bias_is_told_its_norms_and_what_to_do(tmp_path: Path) -> None:
    write_biases(tmp_path, "BF16", [600.0, 80.0], [20.0, 15.0], [3.0, 4.0])
    said = warning("k8v8", QWEN2, tmp_path, "Qwen/Qwen2.5-7B")
    assert said is not None and "\n" not in said
    assert "k8v8 is unmeasured on this model" in said and "norms up to 605, median 25" in said
    assert "use exact, or run `hiqcache quality choose --model Qwen/Qwen2.5-7B`" in said
    assert warning("int8", LLAMA, tmp_path, "x") is not None, "whatever its family"


def test_families_are_known_where_no_weights_are_here() -> None:
    for kind in ("qwen2", "qwen2_moe", "qwen2_5_vl", "gpt_oss"):
        said = warning("k8v8", {"model_type": kind}, None, "m")
        assert said is not None and kind in said
    assert warning("k8v8", {"model_type": "qwen3"}, None, "m") is None


def test_a_bias_of_zero_is_none(tmp_path: Path) -> None:
    write_biases(tmp_path, "F32", [0.0, 0.0])
    assert warning("k8v8", QWEN2, tmp_path, "m") is None


@pytest.mark.parametrize("codec", ["k6v5", "k8v4", "k4v4"])
def test_below_8_bits_only_measured_models_are_passed(codec: str) -> None:
    said = warning(codec, LLAMA, None, "meta/llama")
    assert said is not None and "SmolLM2-135M and Gemma 3 270M alone" in said
    assert f"{codec} keeps {min(codec[1], codec[3])} bits" in said
    assert warning(codec, SMOLLM2, None, "m") is None
    assert warning(codec, {"text_config": SMOLLM2}, None, "m") is None


@pytest.mark.parametrize("codec", ["bf16", "exact"])
def test_what_changes_no_bit_needs_no_measurement(codec: str, tmp_path: Path) -> None:
    write_biases(tmp_path, "BF16", [900.0])
    assert warning(codec, QWEN2, tmp_path, "m") is None


def test_it_needs_no_torch() -> None:
    program = "import sys, hiqcache.codec.advice; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
