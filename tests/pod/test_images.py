"""The images: what is in them, as whom they run, and when their build must fail."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from .compose import ROOT, Compose
from .docker import Engine
from .pod import CPU, SECRETS, SERVICES
from .stand_in import DEBIAN, PYTHON

SERVER = "hiqcache-test/server:latest"


@pytest.fixture(scope="module")
def images(compose: Compose) -> dict[str, str]:
    services = compose.config((CPU,))["services"]
    return {kind: services[f"cpu-{kind}-int8"]["image"] for kind in ("server", "sidecar")}


@pytest.fixture(scope="module")
def base(engine: Engine, server_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """In place of lmsysorg/sglang: SGLang without HiQCache, as root, without an entry point."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "Dockerfile").write_text(
        f"FROM {server_image}\nUSER root\n"
        "RUN python3 -m pip uninstall --yes --quiet hiqcache && rm /opt/hiqcache/*.sh "
        "&& userdel hiqcache\n"
        "ENTRYPOINT []\nCMD []\n"
    )
    engine.build("hiqcache-test/sglang:latest", folder / "Dockerfile", folder, {})
    return "hiqcache-test/sglang:latest"


@pytest.mark.parametrize("kind", ["server", "sidecar"])
def test_an_image_describes_itself(engine: Engine, images: dict[str, str], kind: str) -> None:
    config = engine.inspect(images[kind])["Config"]
    prefix = "org.opencontainers.image."
    labels = {key.removeprefix(prefix) for key in config["Labels"] if key.startswith(prefix)}
    assert labels >= {"title", "description", "licenses", "version", "revision"}
    assert config["Healthcheck"]["Test"][0] == "CMD"
    # An exec form, with an init process that passes signals and exit codes on.
    assert config["Entrypoint"][:2] == ["tini", "--"]
    assert config["User"] == "10001:10001"


def test_the_image_compiles_a_kernel_as_its_user(engine: Engine, images: dict[str, str]) -> None:
    """nvcc, a linker and Python's headers, with nothing of CUDA's on PATH; no GPU is needed."""
    source = (
        "#include <Python.h>\n#include <cuda.h>\n#include <cub/cub.cuh>\n"
        '__global__ void k() {}\nextern "C" int run() { k<<<1, 1>>>(); return cuInit(0); }\n'
    )
    script = (
        "set -eu; cd /tmp; cat >k.cu; ! command -v nvcc; "
        "headers=$(python3 -c \"import sysconfig; print(sysconfig.get_path('include'))\"); "
        "$CUDA_HOME/bin/nvcc -gencode=arch=compute_90a,code=sm_90a -Xcompiler -fPIC -I $headers "
        "-c k.cu; c++ -shared k.o -L$CUDA_HOME/lib64 -L$CUDA_HOME/lib64/stubs -lcudart -lcuda "
        "-o k.so; id -u; touch /kernels/written /weights/written; touch /written 2>/dev/null || "
        "echo closed"
    )
    done = subprocess.run(
        [
            *(engine.program, "run", "--rm", "--interactive", "--read-only", "--cap-drop", "ALL"),
            *("--tmpfs", "/tmp:exec,mode=1777", "--volume", "/weights", "--volume", "/kernels"),
            *("--entrypoint", "sh", images["server"], "-c", script),
        ],
        env=engine.environment,
        input=source,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["10001", "closed"]


def test_doctor_in_the_image_names_what_a_gpu_is_missing(
    engine: Engine, images: dict[str, str]
) -> None:
    def doctor(*options: str) -> dict[str, dict[str, str]]:
        done = engine.try_run(
            *("run", "--rm", "--env", "HIQCACHE_CODEC=int8-compact", *options),
            *("--entrypoint", "hiqcache", images["server"], "doctor", "--json"),
            *("--model-path", "/models/smollm2-135m-instruct", "--device", "cuda"),
            *("--enable-hierarchical-cache", "--hicache-size", "1"),
        )
        assert "{" in done.stdout, done.stdout
        report = json.loads(done.stdout[done.stdout.index("{") :])
        return {check["name"]: check for check in report["checks"]}

    found = doctor()
    assert found["GPU"]["status"] == "failed"
    assert "--gpus all" in found["GPU"]["fix"] and "container-toolkit" in found["GPU"]["fix"]
    assert found["compilers"]["status"] == found["kernels"]["status"] == "ok"
    bare = doctor("--env", "CUDA_HOME=/nowhere", "--read-only", "--tmpfs", "/tmp")
    assert "no nvcc in /nowhere" in bare["compilers"]["text"]
    assert bare["kernels"]["status"] == "failed"


def test_the_sidecar_has_neither_torch_nor_sglang(engine: Engine, images: dict[str, str]) -> None:
    listed = engine.run(
        *("run", "--rm", "--read-only", "--entrypoint", "python3", images["sidecar"]),
        *("-m", "pip", "list", "--format", "json", "--disable-pip-version-check"),
    )
    names = {package["name"] for package in json.loads(listed.splitlines()[-1])}
    assert "hiqcache" in names and not names & {"torch", "sglang"}


@pytest.mark.parametrize("kind", ["server", "sidecar"])
def test_no_secret_and_no_setting_of_this_machine_in_a_layer(
    engine: Engine, images: dict[str, str], kind: str
) -> None:
    image = engine.inspect(images[kind])
    told = engine.run("history", "--no-trunc", images[kind]) + json.dumps(image["Config"])
    assert not [name for name, secret in SECRETS.items() if secret in told]
    assert not [
        word for word in ("PIP_INDEX", "PIP_EXTRA", "PROXY", "127.0.0.1:47631") if word in told
    ]


def test_a_build_gets_neither_env_nor_history(engine: Engine, tmp_path: Path) -> None:
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    for name in (".env", ".git/config", "results/run.json", "hiqcache/__init__.py", ".venv/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(SECRETS["HF_TOKEN"])
    probe = tmp_path / "docker" / "probe.Dockerfile"
    probe.write_text(f"FROM {DEBIAN}\nCOPY . /context\n")
    engine.build("hiqcache-test/context:latest", probe, tmp_path, {})
    found = engine.run("run", "--rm", "hiqcache-test/context:latest", "ls", "-A", "/context")
    assert set(found.split()) == {"docker", "hiqcache"}
    engine.run("rmi", "hiqcache-test/context:latest")


def test_the_server_image_leaves_its_base_alone(engine: Engine, base: str) -> None:
    def versions(image: str) -> dict[str, str]:
        text = engine.run(
            *("run", "--rm", "--entrypoint", "python3", image, "-m", "pip", "list"),
            *("--format", "json", "--disable-pip-version-check"),
        )
        return {p["name"]: p["version"] for p in json.loads(text.splitlines()[-1])}

    arguments = {"BASE_IMAGE": base, "PYTHON_IMAGE": PYTHON}
    engine.build(SERVER, ROOT / "docker" / "server.Dockerfile", ROOT, arguments)
    before, after = versions(base), versions(SERVER)
    assert set(after) - set(before) == {"hiqcache"}
    assert {name: after[name] for name in before} == before
    config = engine.inspect(SERVER)["Config"]
    assert config["Entrypoint"][:2] == ["tini", "--"] and config["Healthcheck"]["Test"]
    hooks = engine.run("run", "--rm", "--entrypoint", "hiqcache", SERVER, "doctor", "--hooks")
    assert hooks


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ("s/def get_mha_host_pool_cls(/def renamed(/", "get_mha_host_pool_cls"),
        ("s/def get_mha_host_pool_cls(buffer_info/&_and_more/", "buffer_info"),
    ],
    ids=["missing", "other parameters"],
)
def test_a_base_with_another_hook_target_builds_no_server(
    engine: Engine, base: str, tmp_path: Path, edit: str, word: str
) -> None:
    changed = "hiqcache-test/changed:latest"
    (tmp_path / "Dockerfile").write_text(
        f"FROM {base}\nRUN f=$(python3 -c 'import importlib.util as u; "
        'print(u.find_spec("sglang").submodule_search_locations[0])\')'
        f"/srt/mem_cache/pool_host/mha.py && sed -i '{edit}' $f && grep -n get_mha_host_pool_cls $f"
        " || true\n"
    )
    engine.build(changed, tmp_path / "Dockerfile", tmp_path, {})
    done = engine.try_run(
        *("build", "--progress", "plain", "--network", "host"),
        *("--file", str(ROOT / "docker" / "server.Dockerfile")),
        *("--build-arg", f"BASE_IMAGE={changed}", "--build-arg", f"PYTHON_IMAGE={PYTHON}"),
        str(ROOT),
    )
    engine.run("rmi", changed)
    assert done.returncode != 0
    assert "hiqcache doctor --hooks" in done.stdout and word in done.stdout


def test_every_started_service_has_an_image_and_a_health_check(
    engine: Engine, compose: Compose
) -> None:
    services = compose.config((CPU,))["services"]
    for name in SERVICES:
        config = engine.inspect(services[name]["image"])["Config"]
        assert "healthcheck" in services[name] or config.get("Healthcheck"), name
