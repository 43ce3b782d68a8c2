"""What the server image does on a GPU, for a machine that has one and no container runtime.

    python -m tests.gpu.as_the_image --out results/h200/image.json --model FOLDER

Run as root from the repository, by the interpreter that has the image's packages (`constraints.txt`
with the extras sglang and demo), HiQCache and pytest; what differs is in the outcome. Everything
runs as the image's user 10001 with the image's variables alone; the machine's own CUDA toolkit is
off PATH, and CUDA_HOME is made of the wheels. `tests/engine/test_restore.py` runs with each
attention backend: under `bf16` every restored row has to be the bits that were backed up. A server
is started twice: the second start has to compile nothing.

What a container runtime adds is not seen: the device and libcuda.so.1 brought in from the host, the
linker's cache, a read-only root, limits of memory and locked pages.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.version import Version

from hiqcache.lab.serving.server import free_port
from hiqcache.provenance import provenance

ROOT = Path(__file__).parents[2]
USER = 10001
BACKENDS = ("triton", "flashinfer", "fa3")
READY_SECONDS = 1200
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def deviations() -> dict[str, str]:
    """Packages of the image that are missing here or of another version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    here = {normal(dist.metadata["Name"]): dist.version for dist in distributions()}
    return {
        name: here.get(normal(name), "missing")
        for name, version in pins.items()
        if normal(name) not in here or Version(here[normal(name)]) != Version(version)
    }


def image_environment(folder: Path) -> dict[str, str]:
    """The variables that docker/server.Dockerfile sets, its folders put below `folder`."""
    text = (ROOT / "docker" / "server.Dockerfile").read_text().replace("\\\n", " ")
    found = {}
    for line in re.findall(r"^ENV (.+)$", text, re.MULTILINE):
        found.update(re.findall(r"(\w+)=(\S+)", line))
    programs = Path(sys.executable).parent
    found["PATH"] = found["PATH"].replace("/opt/hiqcache/bin", str(programs)).replace("$PATH", PATH)
    for name in ("HF_HOME", "SGLANG_CACHE_DIR", "XDG_CACHE_HOME"):
        found[name] = str(folder / found[name].lstrip("/"))
    found["CUDA_HOME"] = str(folder / "cuda")
    # Packages may lie elsewhere than in the interpreter's own folder.
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return found | kept | {"HOME": str(folder)}


def as_user(command: list[str]) -> list[str]:
    ids = ["--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
    return ["setpriv", *ids, "--bounding-set=-all", "--no-new-privs", *command]


def files(folder: Path) -> dict[str, float]:
    """What has been compiled, with its time; locks and logs are none of it."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".lock", ".log")
    }


def start(environ: dict[str, str], model: str, log: Path) -> dict[str, Any]:
    """Start a server, ask it once, and end it; its times and what its log says of the transfer."""
    port = str(free_port())
    command = [sys.executable, "-m", "hiqcache.cli", "serve", "--model-path", model]
    command += ["--port", port, "--enable-metrics", "--max-total-tokens", "16384"]
    command += ["--enable-hierarchical-cache", "--hicache-size", "2"]
    begin = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(
            as_user(command),
            env=environ | {"HIQCACHE_CODEC": "int8-compact"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - begin > READY_SECONDS:
                    raise SystemExit(f"the server does not start: {log}") from None
                time.sleep(0.5)
        seconds = time.monotonic() - begin
    finally:
        process.terminate()
        process.wait(120)
    said = re.search(r"HiQCache: codec=.*", log.read_text(errors="replace"))
    return {"ready_seconds": round(seconds, 1), "said": said[0] if said else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a folder with the demo model's checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="takes the outcome, as JSON")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/as-the-image"))
    args = parser.parse_args()
    folder: Path = args.folder
    environ = image_environment(folder)
    for name in ("weights", "kernels/sglang", "logs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if not (folder / "cuda").exists():
        lay_out = [sys.executable, str(ROOT / "docker" / "cuda_home.py"), str(folder / "cuda")]
        subprocess.run(lay_out, check=True)
    subprocess.run(["chown", "-R", f"{USER}:{USER}", str(folder)], check=True)
    import torch

    outcome: dict[str, Any] = {
        "provenance": provenance("cuda", torch.cuda.get_device_name()),
        "packages_that_differ": deviations(),
        "environment": environ,
        "backends": {},
    }
    kernels = folder / "kernels"
    first = start(environ, args.model, folder / "logs" / "first.log")
    compiled = files(kernels)
    second = start(environ, args.model, folder / "logs" / "second.log")
    changed = sorted(files(kernels).items() - compiled.items())
    outcome["starts"] = {
        "first": first,
        "second": second,
        "files_compiled_by_the_first": len(compiled),
        "files_compiled_by_the_second": [name for name, _ in changed],
    }
    for backend in BACKENDS:
        test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        test += [f"--basetemp={folder}/tests-{backend}", "tests/engine/test_restore.py"]
        done = subprocess.run(
            as_user(test),
            cwd=ROOT,
            env=environ | {"ATTENTION_BACKEND": backend, "TEST_MODEL": args.model},
            capture_output=True,
            text=True,
        )
        (folder / "logs" / f"{backend}.log").write_text(done.stdout + done.stderr)
        last = done.stdout.strip().splitlines()[-1:]
        outcome["backends"][backend] = {"exit_code": done.returncode, "said": last}
        print(backend, done.returncode, *last, flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(outcome, indent=1) + "\n")
    good = all(it["exit_code"] == 0 for it in outcome["backends"].values()) and not changed
    sys.exit(0 if good and "transfer=fused" in (first["said"] or "") else 1)


if __name__ == "__main__":
    os.umask(0o022)
    main()
