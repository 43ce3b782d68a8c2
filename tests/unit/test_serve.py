"""`hiqcache serve` before SGLang: what it refuses at once, and what it brings along."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hiqcache.errors import HiQCacheError, IntegrityError
from hiqcache.lab.serving.server import free_port
from hiqcache.pod import launch
from hiqcache.pod.checks.gpu import no_accelerator
from hiqcache.pod.launch import complete
from tests.unit.processes import wait_gone
from tests.unit.serve_command import ROOT, serve

NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
PLATFORM = "hiqcache_cpu"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


@pytest.fixture
def taken() -> Iterator[str]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield str(listener.getsockname()[1])


def test_without_a_codec_it_stops_with_one_sentence_that_names_the_choice(checkpoint: str) -> None:
    done = serve("--model-path", checkpoint, **NO_GPU)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("hiqcache: HIQCACHE_CODEC is not set") and "int8-compact" in line


def test_a_port_in_use_is_found_before_sglang_is(checkpoint: str, taken: str) -> None:
    done = serve("--model-path", checkpoint, "--port", taken, HIQCACHE_CODEC="off", **NO_GPU)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("hiqcache: port: ") and taken in line


def test_a_wrong_path_is_one_line() -> None:
    port = str(free_port())
    done = serve("--model-path", "/models/none", "--port", port, HIQCACHE_CODEC="off", **NO_GPU)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("hiqcache: model: there is no /models/none")


def test_the_quick_checks_import_neither_torch_nor_sglang(taken: str) -> None:
    program = (
        "import sys; from hiqcache.cli import main; "
        f"assert main(['serve', '--model-path', 'x/y', '--port', '{taken}']) == 1; "
        "assert not {'torch', 'sglang', 'transformers'} & set(sys.modules)"
    )
    environ = {**os.environ, "HIQCACHE_CODEC": "off", **NO_GPU, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("separator", [(), ("--",)])
def test_the_separator_may_be_left_out(separator: tuple[str, ...]) -> None:
    done = serve(*separator, "--model-path", "/models/none", HIQCACHE_CODEC="off", **NO_GPU)
    assert "there is no /models/none" in done.stderr


def test_a_word_that_is_no_option_is_told_where_options_go() -> None:
    done = serve("Qwen/Qwen3-8B", HIQCACHE_CODEC="int8")
    assert done.returncode == 2
    assert "expected an option of SGLang, such as --model-path, got 'Qwen/Qwen3-8B'" in done.stderr


def test_its_own_code_for_damaged_memory_is_nobody_elses() -> None:
    shell_and_signals = range(126, 160)
    uvicorn_and_python = range(4)
    assert IntegrityError.exit_code not in (*shell_and_signals, *uvicorn_and_python)


def test_without_an_accelerator_the_cpu_platform_comes_along() -> None:
    start = complete(["--model-path", "smollm2-135m"], NO_GPU)
    assert start.brought["SGLANG_PLATFORM"] == PLATFORM
    assert start.arguments[-2:] == ("--model-path", "smollm2-135m")
    assert {"--device", "--attention-backend", "--max-total-tokens"} <= {*start.arguments}
    assert "\n" not in start.note and "--max-total-tokens 8192" in start.note


@pytest.mark.parametrize(
    "own",
    [
        ("--max-total-tokens", "4096"),
        ("--max-total-tokens=4096",),
        ("--attention-backend", "intel_amx"),
        ("--device=cpu",),
    ],
)
def test_each_argument_that_is_given_stays_as_it_is(own: tuple[str, ...]) -> None:
    start = complete(own, NO_GPU)
    name = own[0].partition("=")[0]
    assert [word for word in start.arguments if word.startswith(name)] == [own[0]]
    assert start.arguments[-len(own) :] == own
    assert start.brought["SGLANG_PLATFORM"] == PLATFORM


@pytest.mark.parametrize(
    ("arguments", "environ"),
    [
        (["--device", "cuda"], NO_GPU),
        ([], {**NO_GPU, "SGLANG_PLATFORM": "other"}),
        ([], {**NO_GPU, "SGLANG_PLATFORM": ""}),
        (["--help"], NO_GPU),
    ],
)
def test_who_chooses_otherwise_gets_nothing(arguments: list[str], environ: dict[str, str]) -> None:
    start = complete(arguments, environ)
    assert (list(start.arguments), start.brought, start.note) == (arguments, {}, "")


def test_the_platform_alone_brings_its_arguments() -> None:
    """Without them SGLang dies of `'torch.device' object has no attribute 'split'`."""
    start = complete([], {"SGLANG_PLATFORM": PLATFORM, "LRU_CACHE_CAPACITY": "8"})
    assert "--device" in start.arguments and "--max-total-tokens" in start.arguments
    assert not {"SGLANG_PLATFORM", "LRU_CACHE_CAPACITY"} & start.brought.keys()


def test_l1_takes_its_share_of_the_memory_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from hiqcache.pod.checks.memory import Memory

    per_token = 147_456
    for free, tokens in ((10**12, 8192), (16 * 2000 * per_token, 2000), (1, 1024)):
        memory = Memory(free=free, limit=None, in_use=None, room=None)
        monkeypatch.setattr(launch.Memory, "read", lambda memory=memory: memory)
        start = complete(["--model-path", "Qwen/Qwen3-8B"], NO_GPU)
        assert f"--max-total-tokens {tokens}" in start.note


def bus(root: Path, vendor: str, kind: str) -> None:
    device = root / "sys/bus/pci/devices/0000:00:01.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")


def test_a_gpu_that_does_not_answer_is_no_reason_for_the_cpu(tmp_path: Path) -> None:
    bus(tmp_path, "0x10de", "0x030200")
    hidden = no_accelerator(NO_GPU, tmp_path)
    assert hidden is not None and hidden.startswith("no accelerator here")
    gone = {"CUDA_VISIBLE_DEVICES": "4711"}
    with pytest.raises(HiQCacheError, match="has an NVIDIA GPU, but .* --device cpu"):
        no_accelerator(gone, tmp_path)


def test_another_vendors_display_is_no_accelerator(tmp_path: Path) -> None:
    bus(tmp_path, "0x1234", "0x030000")
    assert no_accelerator({"CUDA_VISIBLE_DEVICES": "4711"}, tmp_path) is not None
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert no_accelerator({"CUDA_VISIBLE_DEVICES": "4711"}, tmp_path) is None


CHILDREN = """
import os, signal, subprocess, sys, time
# Deaf to what a shell sends, as SGLang's processes are at times.
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                         start_new_session=True)
print(os.getpid(), child.pid, flush=True)
print("noise", file=sys.stderr, flush=True)
{}
time.sleep(600)
"""


def supervised(then: str = "") -> subprocess.Popen[str]:
    """A server stands in: a process with a child that has left its group."""
    program = (
        "import os, signal, sys; from hiqcache.supervisor import supervise; "
        # A shell has what it runs in the background ignore Ctrl-C.
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        "signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        f"sys.exit(supervise([sys.executable, '-c', {CHILDREN.format(then)!r}], os.environ))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def running(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None and process.stderr is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert process.stderr.readline() == "noise\n"
    return pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_every_process_with_one_line(number: signal.Signals) -> None:
    process = supervised()
    pids = running(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert out == "" and err.count("\n") == 1 and err.startswith("hiqcache: ")
    wait_gone(pids)


def test_a_killed_supervisor_leaves_no_launcher() -> None:
    process = supervised()
    launcher, child = running(process)
    process.kill()
    process.communicate(timeout=60)
    wait_gone([launcher])
    os.kill(child, signal.SIGKILL)


def test_nohup_is_respected(tmp_path: Path) -> None:
    wait = f"echo ready; until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 5"
    program = (
        "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
        "from hiqcache.supervisor import supervise; "
        f"sys.exit(supervise(['sh', '-c', {wait!r}], os.environ))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 5


REFUSED = """
from hiqcache.engine.stop import fail_closed
from hiqcache.errors import IntegrityError
try:
    with fail_closed(what="server"):
        raise IntegrityError("L2 is damaged")
except SystemExit:
    pass
print("SGLang's own noise", file=sys.stderr, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_refusal_is_the_last_line_and_its_code_the_exit_code() -> None:
    process = supervised(REFUSED)
    pids = running(process)
    _, err = process.communicate(timeout=60)
    assert process.returncode == IntegrityError.exit_code
    *_, noise, last = err.splitlines()
    assert (noise, last) == ("SGLang's own noise", "HiQCache stops the server: L2 is damaged")
    wait_gone(pids)


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_the_servers_own_code_comes_through(end: str, code: int) -> None:
    process = supervised(end)
    running(process)
    process.communicate(timeout=60)
    assert process.returncode == code
