"""Whatever ends a command that has started servers ends the servers as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hiqcache.lab.serving.server import free_port
from tests.unit.processes import descendants, wait_gone

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
START_SECONDS = 240
BROKEN_HOOK = Path(__file__).parent / "broken_hook"
SERVER = b"sglang.launch_server"


def server_below(pid: int) -> bool:
    """Whether one of the processes below is SGLang's, past the program that it is started by."""
    for below in descendants(pid):
        try:
            words = Path(f"/proc/{below}/cmdline").read_bytes()
        except OSError:
            continue
        if SERVER in words and b"lifeline" not in words:
            return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_the_demos_server_ends_with_the_demo(
    number: signal.Signals, model: str, tmp_path: Path
) -> None:
    command = ("-m", "hiqcache.cli", "demo", "--model", model, "--out", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell has what it runs in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + START_SECONDS
    while not server_below(process.pid):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    servers = descendants(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=START_SECONDS)
    wait_gone(servers)
    assert "Traceback" not in said and "FAILED" not in said
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        own = [line for line in said.splitlines() if line.startswith("hiqcache: ")]
        assert len(own) == 1


def test_the_last_line_of_a_refused_start_is_the_refusal(model: str) -> None:
    command = ("-m", "hiqcache.cli", "serve", "--model-path", model, "--enable-hierarchical-cache")
    broken = {"PYTHONPATH": os.pathsep.join((str(BROKEN_HOOK), str(ROOT))), "BREAK": "remove"}
    done = subprocess.run(
        [sys.executable, *command, "--port", str(free_port())],
        env={**os.environ, **broken, "HIQCACHE_CODEC": "int8"},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 1
    *noise, last = done.stderr.splitlines()
    assert last.startswith("HiQCache stops the start: ") and "get_mha_host_pool_cls" in last
    assert noise


ORPHAN = """
import multiprocessing, os, pathlib, sys, time

def child(folder, parent):
    (folder / "begun").write_text(str(os.getpid()))
    while os.getppid() == parent:
        time.sleep(0.01)
    from hiqcache.engine.plugin import register
    register()
    (folder / "alive").touch()

if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    multiprocessing.get_context("spawn").Process(target=child, args=(folder, os.getpid())).start()
    while not (folder / "begun").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)
"""


def test_a_process_whose_parent_died_while_it_started_goes_no_further(tmp_path: Path) -> None:
    program = tmp_path / "orphan.py"
    program.write_text(ORPHAN)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "HIQCACHE_CODEC": "off"}
    subprocess.run([sys.executable, str(program), str(tmp_path)], env=environ, timeout=60)
    wait_gone([int((tmp_path / "begun").read_text())])
    assert not (tmp_path / "alive").exists()
