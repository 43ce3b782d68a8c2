"""Traces as they lie around: every form, every file, and one sentence for the rest."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hiqcache.cli import main
from hiqcache.simulate.replay import Request
from hiqcache.simulate.trace import read_trace

FLAGS = ["--geometry", "qwen3-8b", "--l1-tokens", "16384", "--hicache-size", "8"]
ROW = {"hash_ids": [1, 2], "input_length": 700, "output_length": 5}
READ = [Request(((1, 512), (2, 188)), 5)]


class Words:
    """A tokenizer whose tokens are words."""

    def text(self, text: str) -> Sequence[int]:
        return [ord(word[0]) for word in text.split()]

    def chat(self, messages: list[Any], tools: list[Any] | None) -> Sequence[int]:
        return self.text(" ".join(f"{it['role']} {it['content']}" for it in messages))


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a refusal."""
    assert main(["simulate", *FLAGS, *arguments]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "Traceback" not in message
    return message


def test_mooncakes_form_is_read(tmp_path: Path) -> None:
    assert read_trace(write(tmp_path / "t", ROW)).requests == READ


TEXT = json.dumps(ROW)
FILES = {
    "gzip": gzip.compress(TEXT.encode()),
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16 without a mark": TEXT.encode("utf-16-le"),
    "UTF-32": TEXT.encode("utf-32"),
    "a byte-order mark": TEXT.encode("utf-8-sig"),
    "gzip of UTF-16": gzip.compress(TEXT.encode("utf-16")),
    "a blank last line": TEXT.encode() + b"\n  \n\n",
    "carriage returns": b"\r\n" + TEXT.encode() + b"\r\n",
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_is_read_as_it_lies_around(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(content)
    assert read_trace(str(tmp_path / "t")).requests == READ


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_standard_input_is_read(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert read_trace("-").requests == READ


def test_a_hash_may_be_a_list(tmp_path: Path) -> None:
    path = write(tmp_path / "t", {"hash_ids": [[1, 2], ["a", 3]], "input_length": 700})
    assert [key for key, _ in read_trace(path).requests[0].blocks] == [(1, 2), ("a", 3)]


NO_TRACE = {
    "no such file": (None, "No such file"),
    "empty": (b"", "holds no requests"),
    "blank": (b"\n \n", "holds no requests"),
    "no text": (b"\xff\xfe\xfd\xfc\xfb", "is not text"),
    "cut-off gzip": (gzip.compress(TEXT.encode() * 99)[:40], "cut off"),
    "damaged gzip": (b"\x1f\x8b\x08\x00" + b"\x07" * 40, "damaged"),
    "zstd": (b"\x28\xb5\x2f\xfd\x00", "zstd"),
    "Parquet": (b"PAR1\x15\x04", "Parquet"),
    "a list of requests": (b"[" + TEXT.encode() + b"]", "expected an object, got list"),
    "deep": (b"[" * 100_000, "line 1"),
}


@pytest.mark.parametrize(("content", "words"), NO_TRACE.values(), ids=NO_TRACE)
def test_a_file_that_is_no_trace_is_refused_in_one_sentence(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert words in refused(capsys, str(path))


@pytest.mark.parametrize("path", ["/", "a\0b", "x" * 5000])
def test_a_path_that_is_no_file_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read" in refused(capsys, path)


BAD_ROWS: dict[str, Any] = {
    "nothing": {},
    "no object": [1],
    "no blocks": {"blocks": []},
    "blocks of another type": {"blocks": 5},
    "a block of three": {"blocks": [["a", 1, 2]]},
    "a block without tokens": {"blocks": [["a", 0]]},
    "tokens as text": {"blocks": [["a", "9"]]},
    "a hash that is a fraction": {"blocks": [[1.5, 9]]},
    "a hash that is an object": {"hash_ids": [{}], "input_length": 9},
    "no hashes": {"hash_ids": [], "input_length": 700},
    "hashes without a length": {"hash_ids": [1]},
    "a negative answer": {"blocks": [["a", 9]], "output": -1},
    "an answer as text": {"blocks": [["a", 9]], "output": "many"},
    "beyond reason": {"blocks": [["a", 10**30]]},
    "no prompt": {"prompt": []},
    "a prompt of another type": {"prompt": {"text": "x"}},
    "mixed token ids": {"prompt": [1, "a"]},
    "no message": {"messages": ["hello"]},
    "an image": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
}


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_is_named_by_its_line(
    row: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert " line 2: " in refused(capsys, write(tmp_path / "t", {"blocks": [["x", 9]]}, row))


def test_prompts_as_text_need_a_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ({"text": "a b"}, {"prompt": "a b"}, {"messages": [{"role": "user"}]}):
        assert "--tokenizer" in refused(capsys, write(tmp_path / "t", row))
    assert "cannot be loaded" in refused(capsys, str(tmp_path / "t"), "--tokenizer", str(tmp_path))


OPENAI: dict[str, tuple[dict[str, Any], list[int]]] = {
    "text": ({"text": "a b c d e"}, [5]),
    "a completion": ({"prompt": "a b c d e", "model": "m"}, [5]),
    "a batch of prompts": ({"prompt": ["a b", "c"]}, [2, 1]),
    "token ids": ({"prompt": [5, 6, 7]}, [3]),
    "a batch of token ids": ({"prompt": [[5, 6, 7], [5]]}, [3, 1]),
    "a chat": ({"messages": [{"role": "user", "content": "a b"}]}, [3]),
    "a chat of parts": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a b"}]}]},
        [3],
    ),
    "a line of a batch file": (
        {"custom_id": "1", "method": "POST", "body": {"messages": [{"role": "u", "content": "a"}]}},
        [2],
    ),
}


@pytest.mark.parametrize(("row", "tokens"), OPENAI.values(), ids=OPENAI)
def test_openais_requests_are_read(row: dict[str, Any], tokens: list[int], tmp_path: Path) -> None:
    found = read_trace(write(tmp_path / "t", row), 2, Words()).requests
    assert [sum(size for _, size in request.blocks) for request in found] == tokens
    assert all(size <= 2 for request in found for _, size in request.blocks)


def test_what_is_taken_for_an_answers_length_is_said(tmp_path: Path) -> None:
    rows = [
        {"prompt": [1], "usage": {"completion_tokens": 7}, "max_tokens": 99},
        {"prompt": [1], "max_tokens": 32},
        {"prompt": [1]},
        {"prompt": [1]},
    ]
    trace = read_trace(write(tmp_path / "t", *rows))
    assert [request.output for request in trace.requests] == [7, 32, 0, 0]
    nothing, limit = trace.notes
    assert nothing.startswith("2 requests do not say") and "0 tokens" in nothing
    assert limit.startswith("1 requests name the limit")


def test_a_block_size_that_does_not_fit_is_refused_with_the_one_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"hash_ids": [*range(n - 1), f"end {n}"], "input_length": 16 * n - 3} for n in range(1, 60)
    ]
    path = write(tmp_path / "t", *rows)
    assert "give --block-tokens 16" in refused(capsys, path)
    # The other way round: more tokens than the hashes hold.
    assert "to 16 would: give --block-tokens 16" in refused(capsys, path, "--block-tokens", "8")
    longest = read_trace(path, 16).requests[-1]
    assert [tokens for _, tokens in longest.blocks] == [16] * 58 + [13]


def test_hashes_that_fit_no_block_size_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ({"hash_ids": [1], "input_length": 700}, {"hash_ids": [1, 2, 3], "input_length": 700})
    message = refused(capsys, write(tmp_path / "t", *rows))
    assert "no block size fits" in message and "line 1" in message and "line 2" in message


@pytest.mark.parametrize(
    "rows",
    [
        ({"blocks": [["a", 9]]}, {"blocks": [["b", 1], ["a", 8]]}),
        ({"hash_ids": [1], "input_length": 9}, {"hash_ids": [1, 2], "input_length": 600}),
    ],
)
def test_one_hash_has_one_size(
    rows: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, write(tmp_path / "t", *rows))
    assert "line 2: " in message and "a hash has one size" in message


def test_prompts_too_long_for_l1_are_counted_and_the_l1_that_takes_them_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"hash_ids": [0], "input_length": 300, "output_length": 9},
        {"hash_ids": list(range(1, 48)), "input_length": 23_594, "output_length": 500},
    ]
    path = write(tmp_path / "t", *rows)
    assert main(["simulate", path, *FLAGS]) == 0
    out = capsys.readouterr().out
    assert "1 of 2 requests have a prompt too long" in out
    assert "--l1-tokens 24096 takes all of them" in out
    assert main(["simulate", path, *FLAGS[:3], "24096", *FLAGS[4:], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["notes"] == []
    assert found["codecs"][0]["refused"] == found["codecs"][0]["shortened"] == 0
    assert "no prompt of the trace fits" in refused(capsys, path, "--l1-tokens", "100")


def test_the_defaults_are_sglangs_and_the_help_says_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", write(tmp_path / "t", ROW), *FLAGS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "write_through"
    for command in ("simulate", "capacity"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        options = capsys.readouterr().out.split("\n  --")[1:]
        silent = [it.split()[0] for it in options if "default" not in it]
        assert set(silent) <= {"geometry", "l1-tokens", "hicache-size"}  # required


def test_a_model_with_a_pool_of_windows_is_simulated_with_the_servers_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t", ROW)
    flags = ["--geometry", "gpt-oss-120b", *FLAGS[2:], "--disable-hybrid-swa-memory"]
    assert main(["simulate", path, *flags]) == 0
    assert "int8-compact" in capsys.readouterr().out
