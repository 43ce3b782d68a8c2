"""`make test-sglang-matrix`: which SGLang releases HiQCache works with, found out by running them.

Each release is installed into a virtual environment of its own (11 GB, removed afterwards), one
after another; the release of the environment that runs this is tested there. Where the hooks
fit, end-to-end tests run on three servers. Where they do not, a server that was asked for an
encoded L2 must refuse to start. Exit code 1: the pinned release failed, or another one neither
works nor refuses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hiqcache.provenance import cpu_model, provenance

ROOT = Path(__file__).parents[1]
RELEASES = ("0.5.21", "0.5.22", "0.5.23")
# Three servers: two codecs, layouts and policies, and automatic sizing.
CASES = "int8-write_back or automatic or (int8-compact-write_through and not selective)"
TESTS = ("tests/engine/test_restore.py", "tests/engine/test_automatic_sizing.py", "-k", CASES)
# GPU kernels whose wheels lie on NVIDIA's own index alone; on a CPU nothing imports them.
LEFT_OUT = ("cuda-tile",)
REQUIRED = "from importlib.metadata import requires; print(*requires('sglang'), sep='\\n')"
# What the tests need beside SGLang's own requirements.
BESIDE = ("gguf>=0.17,<1", "pytest>=8.3,<10")
HOOKS = """
import importlib.metadata, json
from hiqcache.pod.checks.software import check_hooks
found = check_hooks()
versions = {name: importlib.metadata.version(name) for name in ("sglang", "torch")}
print("MATRIX" + json.dumps({"fits": found.status == "ok", "detail": found.text, **versions}))
"""
REFUSAL = "HiQCache stops the start: "
START_SECONDS = 600
TEST_SECONDS = 3600


def environment(release: str) -> Path:
    """The interpreter of an environment with the release; ours, if it is ours."""
    if version("sglang") == release:
        return Path(sys.executable)
    folder = ROOT / "out" / "matrix" / release
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "--no-deps", f"sglang=={release}", "--editable", ROOT], check=True)
    listed = subprocess.run([python, "-c", REQUIRED], capture_output=True, text=True, check=True)
    required = [
        line
        for line in listed.stdout.splitlines()
        if "extra ==" not in line and not re.match(rf"({'|'.join(LEFT_OUT)})\b", line)
    ]
    subprocess.run([*install, *required, *BESIDE], check=True)
    return python


def variables() -> dict[str, str]:
    """This process's variables, with this checkout first and nothing of HiQCache's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("HIQCACHE_")}
    return inherited | {"PYTHONPATH": str(ROOT)}


def without_path(sentence: str) -> str:
    """What Python says of a failed import, less where the file lies on this machine."""
    return re.sub(r" \(/[^()]*\)", "", sentence)


def hooks(python: Path) -> dict[str, Any]:
    """What `hiqcache doctor --hooks` would say of the targets, whatever release it is."""
    done = subprocess.run(
        [str(python), "-c", HOOKS], capture_output=True, text=True, env=variables(), cwd=ROOT
    )
    for line in done.stdout.splitlines():
        if line.startswith("MATRIX"):
            found: dict[str, Any] = json.loads(line.removeprefix("MATRIX"))
            return found | {"detail": without_path(found["detail"])}
    raise SystemExit(f"{python} could not look at the hooks: {done.stderr[-2000:]}")


def tests(python: Path) -> dict[str, Any]:
    """The end-to-end tests; the summary's counts."""
    command = [str(python), "-m", "pytest", "-q", *TESTS]
    done = subprocess.run(
        command, capture_output=True, text=True, env=variables(), cwd=ROOT, timeout=TEST_SECONDS
    )
    print(done.stdout[-4000:])
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout.splitlines()[-1])
    outcome = {kind: int(count) for count, kind in counts}
    return {"tests": " ".join(TESTS), "exit_code": done.returncode, **outcome}


def start(python: Path) -> dict[str, Any]:
    """A server that is asked for an encoded L2, and what it says; it must not come up."""
    command = [str(python), "-m", "sglang.launch_server", "--model-path", str(ROOT)]
    # No platform: the plugin has its say before SGLang needs a device.
    asked = {"HIQCACHE_CODEC": "int8"}
    done = subprocess.run(
        [*command, "--enable-hierarchical-cache", "--device", "cpu"],
        capture_output=True,
        text=True,
        env=variables() | asked,
        cwd=ROOT,
        timeout=START_SECONDS,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith(REFUSAL)]
    return {"exit_code": done.returncode, "sentence": without_path(said[0]) if said else None}


def look_at(release: str, keep: bool) -> dict[str, Any]:
    """One release's row."""
    python = environment(release)
    found = hooks(python)
    assert found["sglang"] == release, found
    row = {"release": release, "torch": found["torch"], "hooks_fit": found["fits"]}
    row["hooks"] = found["detail"]
    if found["fits"]:
        row["tests"] = tests(python)
        row["good"] = row["tests"]["exit_code"] == 0
    else:
        row["start"] = start(python)
        sentence = row["start"]["sentence"] or ""
        row["good"] = row["start"]["exit_code"] != 0 and f"SGLang {release}" in sentence
    if not keep and python != Path(sys.executable):
        shutil.rmtree(python.parents[1])
    return row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sglang_matrix", description=__doc__)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="default: all three")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "sglang-matrix.json")
    parser.add_argument("--keep", action="store_true", help="leave the environments in out/matrix")
    args = parser.parse_args()
    path: Path = args.out
    kept = json.loads(path.read_text())["releases"] if path.exists() else []
    rows = {row["release"]: row for row in kept}
    for release in args.releases:
        origin = provenance("cpu", cpu_model())
        for name in ("sglang", "torch", "triton"):
            del origin[name]
        rows[release] = look_at(release, args.keep) | {"provenance": origin}
        found = {"releases": [rows[name] for name in sorted(rows)]}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(json.dumps(rows[release], indent=1), flush=True)
    pinned = version("sglang")
    asked = [rows[release] for release in args.releases]
    fits = all(row["hooks_fit"] for row in asked if row["release"] == pinned)
    return 0 if fits and all(row["good"] for row in asked) else 1


if __name__ == "__main__":
    sys.exit(main())
