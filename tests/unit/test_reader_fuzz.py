"""Whatever a file holds: an answer, or one sentence and exit code 2, and never a traceback.

Each of the readers gets hundreds of files: public ones with a few values put wrong, objects of the
right keys with anything in them, and bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiqcache import cli
from hiqcache.geometries import shipped_config, shipped_names
from hiqcache.model_config import HEADS, HIDDEN, KV_HEADS, LAYERS

FUZZ = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 4096)
    | st.floats()
    | st.text(max_size=12)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
CONFIG_KEYS = (
    *LAYERS,
    *HEADS,
    *HIDDEN,
    *KV_HEADS,
    "architectures",
    "attn_config",
    "attn_type_list",
    "compression_config",
    "dim",
    "head_dim",
    "is_hybrid_swa",
    "kv_lora_rank",
    "layer_types",
    "model_type",
    "multi_query",
    "n_kv_heads",
    "quantization_config",
    "sliding_window",
    "text_config",
    "thinker_config",
    "v_head_dim",
)
PARAMS = {"dim": 4096, "n_layers": 32, "head_dim": 128, "n_heads": 32, "n_kv_heads": 8}
ROWS: tuple[dict[str, Any], ...] = (
    {"hash_ids": [46, 47, 48], "input_length": 1300, "output_length": 52, "timestamp": 27482},
    {"blocks": [["system-7", 2048], ["q-31", 64]], "output": 32},
    {"prompt": [15, 27, 9], "max_tokens": 16},
    {"messages": [{"role": "user", "content": "Hello"}], "usage": {"completion_tokens": 9}},
)


def spoilt(base: dict[str, Any], keys: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A file with some values put wrong, some keys left out and some added."""
    changes = st.dictionaries(st.sampled_from((*base, *keys)), ANYTHING, max_size=5)
    left_out = st.sets(st.sampled_from(sorted(base)), max_size=2)
    return st.builds(
        lambda change, out: {k: v for k, v in (base | change).items() if k not in out},
        changes,
        left_out,
    )


def as_file(objects: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """The object as JSON in one of four encodings, now and then cut off; or any bytes."""
    encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"])
    whole = st.builds(lambda it, encoding: json.dumps(it).encode(encoding), objects, encodings)
    cut = st.builds(lambda raw, at: raw[: at % (len(raw) + 1)], whole, st.integers(0, 500))
    return whole | cut | st.binary(max_size=64)


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building it takes longer than reading a file."""
    monkeypatch.setattr(cli, "build_parser", cache(cli.build_parser))


def answers(*arguments: str) -> str:
    """Run the program; hold it to an answer or one sentence, and return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    assert code in (0, 1, 2), code
    assert "Traceback" not in err.getvalue()
    lines = err.getvalue().splitlines()
    if code:
        assert len(lines) == 1 and lines[0].startswith("hiqcache: "), lines
        assert len(lines[0]) < 2000
    else:
        assert lines == []
    return out.getvalue()


def capacity_of(folder: Path) -> None:
    out = answers("capacity", "--geometry", str(folder), "--hicache-size", "8", "--json")
    if not out:
        return
    report = json.loads(out)
    raw = b"".join(file.read_bytes() for file in folder.iterdir())
    text = raw.decode(json.detect_encoding(raw))
    # A figure is in the file, or a note says where it comes from.
    for name in ("kv_heads", "head_dim", "layers"):
        if name not in report["geometry"]:
            continue  # a stack of several pools has them by pool (test_hybrids.py)
        figure = report["geometry"][name]
        said = any(str(figure) in note for note in report["notes"])
        assert str(figure) in text or said or (name, figure) == ("kv_heads", 1), name


@pytest.mark.parametrize(
    ("file", "bases"),
    [
        ("config.json", [shipped_config(name) for name in shipped_names()]),
        ("params.json", [PARAMS]),
    ],
)
def test_any_description_of_a_model(file: str, bases: list[dict[str, Any]], tmp_path: Path) -> None:
    objects = st.sampled_from(bases).flatmap(lambda base: spoilt(base, CONFIG_KEYS)) | ANYTHING
    nested = st.builds(lambda text, top: top | {"text_config": text}, objects, spoilt({"a": 1}, ()))

    @FUZZ
    @given(as_file(objects | nested))
    def read(content: bytes) -> None:
        (tmp_path / file).write_bytes(content)
        capacity_of(tmp_path)

    read()


def test_any_quantisation_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(shipped_config("qwen3-8b")))

    @FUZZ
    @given(as_file(spoilt({"quantization": {"quant_algo": "FP8"}}, ("kv_cache_quant_algo",))))
    def read(content: bytes) -> None:
        (tmp_path / "hf_quant_config.json").write_bytes(content)
        answers("capacity", "--geometry", str(tmp_path), "--hicache-size", "8")

    read()


def simulated(path: Path) -> Callable[[bytes], None]:
    def simulate(content: bytes) -> None:
        path.write_bytes(content)
        flags = ("--geometry", "qwen3-8b", "--l1-tokens", "4096", "--hicache-size", "1")
        out = answers("simulate", str(path), *flags, "--json")
        for row in json.loads(out)["codecs"] if out else ():
            assert 0 <= row["hit_rate"] <= 1
            assert row["l2_used_tokens"] <= row["l2_tokens"]

    return simulate


def test_any_trace(tmp_path: Path) -> None:
    rows = st.sampled_from(ROWS).flatmap(lambda row: spoilt(row, tuple(ROWS[0]))) | ANYTHING
    lines = st.lists(rows, max_size=5).map(lambda them: "\n".join(map(json.dumps, them)))
    encodings = st.sampled_from(["utf-8", "utf-8-sig", "utf-16"])
    files = st.builds(lambda text, encoding: text.encode(encoding), lines, encodings)
    FUZZ(given(files | st.binary(max_size=64))(simulated(tmp_path / "trace.jsonl")))()


def test_any_good_trace_adds_up(tmp_path: Path) -> None:
    """Rows that are right, in any order, with hashes that come back: figures, never a fault."""
    block = st.integers(0, 9).map(lambda key: [f"h{key}", 40 + 97 * key])
    row = st.builds(
        lambda blocks, output: {"blocks": blocks, "output": output},
        st.lists(block, min_size=1, max_size=8),
        st.integers(0, 5000),
    )
    files = st.lists(row, min_size=1, max_size=60).map(
        lambda rows: "\n".join(map(json.dumps, rows)).encode()
    )
    FUZZ(given(files)(simulated(tmp_path / "trace.jsonl")))()
