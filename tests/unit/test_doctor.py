"""The command itself, as a container's entrypoint and a build run it, and SGLang's arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hiqcache.lab.serving.server import free_port
from hiqcache.pod.checks import gpu
from hiqcache.pod.checks.containers import ENGINE, RUNTIME, check_runtime
from hiqcache.pod.checks.gpu import Gpu, Gpus
from hiqcache.pod.plan import Plan
from hiqcache.ranks import Ranks

BASE = {"PATH": "/usr/bin:/bin", "HOME": "/root"}


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hiqcache.cli", "doctor", *arguments],
        env={**BASE, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def failures(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Without warnings, which a machine with little disk has too."""
    return [line for line in done.stdout.splitlines() if line.startswith("failed")]


def test_quick_says_nothing_about_what_is_well(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    arguments = ("--", "--model-path", str(tmp_path), "--port", str(free_port()))
    done = doctor("--quick", *arguments, HIQCACHE_CODEC="off")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_quick_stops_with_one_line() -> None:
    arguments = ("--", "--model-path=/models/none", f"--port={free_port()}")
    done = doctor("--quick", *arguments, HIQCACHE_CODEC="off")
    assert done.returncode == 1
    (line,) = failures(done)
    assert "/models/none" in line


def test_quick_names_an_unknown_codec() -> None:
    done = doctor("--quick", "--", "--port", str(free_port()), HIQCACHE_CODEC="int9")
    assert done.returncode == 1
    (line,) = failures(done)
    assert "HIQCACHE_CODEC='int9'" in line and "int8-compact" in line


L2 = ("--enable-hierarchical-cache", "--hicache-size", "1")
MLA = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "kv_lora_rank": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "hidden_size": 1024,
}


HYBRID = MLA | {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "kv_lora_rank": None,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}
"""Its attention layers are encoded."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "but the server has none: add --enable-hierarchical-cache"),
        ((*L2[:2], "8.5"), "--hicache-size 8.5: expected a whole number from 1"),
        ((*L2, "--max-total-tokens", "8.5"), "--max-total-tokens 8.5: expected a number of tokens"),
        ((*L2, "--hicache-io-backend=direct"), "got page_first_direct"),
        ((*L2, "--kv-cache-dtype", "fp8_e5m2"), "got --kv-cache-dtype fp8_e5m2"),
        ((*L2, "--hicache-storage-backend", "nixl"), "file, dynamic, mooncake, got nixl"),
        ((*L2, "--tp-size", "3"), "tensor parallelism 3"),
        ((*L2, "--disaggregation-mode", "prefill"), "got --disaggregation-mode prefill"),
    ],
)
def test_what_the_server_would_refuse_fails(arguments: tuple[str, ...], words: str) -> None:
    port = str(free_port())
    model = ("--model-path", "Qwen/Qwen3-8B", "--port", port)
    done = doctor("--quick", *model, *arguments, HIQCACHE_CODEC="int8")
    assert done.returncode == 1
    assert any(words in line for line in failures(done)), done.stdout


def test_a_model_that_the_server_would_refuse_fails(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MLA))
    arguments = ("--quick", "--model-path", str(tmp_path), "--port", str(free_port()), L2[0])
    (line,) = failures(doctor(*arguments, HIQCACHE_CODEC="int8"))
    assert "multi-head latent attention" in line and "HIQCACHE_CODEC=off" in line
    assert not failures(doctor(*arguments, HIQCACHE_CODEC="off"))
    (tmp_path / "config.json").write_text(json.dumps(HYBRID))
    assert not failures(doctor(*arguments, HIQCACHE_CODEC="int8"))


def test_a_checkpoint_that_asks_for_an_fp8_kv_cache_fails_unless_it_is_overruled(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MLA | {"kv_lora_rank": None}))
    (tmp_path / "hf_quant_config.json").write_text('{"quantization":{"kv_cache_quant_algo":"FP8"}}')
    arguments = ("--quick", "--model-path", str(tmp_path), "--port", str(free_port()), L2[0])
    (line,) = failures(doctor(*arguments, HIQCACHE_CODEC="int8"))
    assert "hf_quant_config.json (kv_cache_quant_algo FP8) asks for an FP8 one" in line
    assert "add --kv-cache-dtype bfloat16" in line
    overruled = (*arguments, "--kv-cache-dtype", "bfloat16")
    assert not failures(doctor(*overruled, HIQCACHE_CODEC="int8"))


def test_a_forgotten_codec_fails() -> None:
    done = doctor("--quick", "--model-path", "Qwen/Qwen3-8B", "--port", str(free_port()))
    (line,) = failures(done)
    assert "HIQCACHE_CODEC is not set" in line


def test_arguments_in_a_file_are_left_to_sglang() -> None:
    arguments = ("--model-path", "Qwen/Qwen3-8B", "--port", str(free_port()), "--config", "x.yaml")
    done = doctor("--quick", "--json", *arguments, HIQCACHE_CODEC="int8")
    checks = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    assert checks["arguments"] == "skipped"


def test_quick_has_nothing_against_a_question_for_help() -> None:
    assert doctor("--quick", "--", "--help").returncode == 0


def test_quick_imports_neither_torch_nor_sglang() -> None:
    program = (
        "import sys; from hiqcache.cli import main; main(['doctor', '--quick', '--json']); "
        "assert not {'torch', 'sglang', 'docker'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=BASE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)["checks"]
    assert [check["name"] for check in checks] == [
        *("platform", "configuration", "arguments", "model", "memory"),
        *("shared memory", "locked memory", "port", "disk"),
    ]
    assert {check["status"] for check in checks} <= {"ok", "warning", "failed", "skipped"}


def test_every_check_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    quick = [check["name"] for check in json.loads(doctor("--quick", "--json").stdout)["checks"]]
    more = ("largest L2", gpu.NAME, "driver", "compute", "VRAM", "compilers", "kernels")
    more += ("SGLang", "hook targets")
    for name in (*quick, *more, ENGINE, RUNTIME, "Compose"):
        assert f"| {name} |" in page, name


def test_hooks_passes_on_the_pinned_release() -> None:
    pytest.importorskip("sglang")
    done = doctor("--hooks")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "hook targets" in done.stdout and "failed" not in done.stdout


def test_hooks_fails_on_another_release(tmp_path: Path) -> None:
    # An installed release of another version, as importlib.metadata finds it: first on the path.
    other = tmp_path / "sglang-0.5.22.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.22\n")
    done = doctor("--hooks", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "version 0.5.22, expected 0.5.23" in done.stdout


def test_hooks_fails_on_a_changed_target(tmp_path: Path) -> None:
    pytest.importorskip("sglang")
    (tmp_path / "sitecustomize.py").write_text(
        "import sglang.srt.mem_cache.pool_host.mha as m\n"
        "m.get_mha_host_pool_cls = lambda pool, more: None\n"
    )
    done = doctor("--hooks", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "get_mha_host_pool_cls" in done.stdout and "expected (buffer_info)" in done.stdout


def test_bad_input_is_one_line() -> None:
    for arguments in (("--hooks", "--quick"), ("model",), ("--hoks",)):
        done = doctor(*arguments)
        assert done.returncode == 2 and done.stderr.count("\n") == 1


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_arguments_in_both_forms(form: str) -> None:
    given = {"--model": "m", "--port": "8", "--hicache-size": "3", "--tensor-parallel-size": "2"}
    words = " ".join(form.format(*pair) for pair in given.items()).split()
    plan = Plan.parse([*words, "--enable-hierarchical-cache"], {})
    assert (plan.model, plan.port, plan.l2_gigabytes, plan.ranks.tp) == ("m", 8, 3, 2)
    assert plan.l2_bytes() == 6 * 10**9


def test_arguments_that_sglang_will_refuse_are_left_to_it() -> None:
    plan = Plan.parse(["--port", "--hicache-size", "much", "--hicache-ratio=nan", "--model-path"])
    assert (plan.port, plan.l2_gigabytes, plan.l2_ratio, plan.model) == (30000, None, None, "")


@pytest.mark.parametrize(
    ("text", "tokens"), [("8192", 8192), ("8k", 8000), ("1.5k", 1500), ("8Ki", 8192), ("8K", None)]
)
def test_tokens_are_read_as_sglang_reads_them(text: str, tokens: int | None) -> None:
    assert Plan.parse(["--max-total-tokens", text]).l1_tokens == tokens


def test_the_last_one_counts() -> None:
    assert Plan.parse(["--port", "1", "--port=2"]).port == 2


H200 = Gpu(0, "NVIDIA H200", (9, 0), 150 * 10**9, 149 * 10**9)
FOUND = Gpus("580.159.04", (13, 0), (H200,))


def test_gpu_checks() -> None:
    assert gpu.check_count(Plan(), FOUND).status == "ok"
    assert gpu.check_count(Plan(ranks=Ranks(tp=2)), FOUND).status == "failed"
    assert gpu.check_driver(FOUND, (13, 0)).status == "ok"
    assert gpu.check_driver(FOUND, (12, 9)).status == "ok"
    assert gpu.check_driver(Gpus("550.1", (12, 4), (H200,)), (13, 0)).status == "failed"
    assert gpu.check_capability(Plan(model="m"), H200).status == "ok"
    turing = Gpu(0, "Tesla T4", (7, 5), 16 * 10**9, 16 * 10**9)
    assert gpu.check_capability(Plan(model="m"), turing).status == "failed"
    plan = Plan(model="Qwen/Qwen3-8B", l1_tokens=16_384)
    assert gpu.check_vram(plan, H200, 16_400_000_000).status == "ok"
    refused = gpu.check_vram(plan, turing, 16_400_000_000)
    # 16.4 of weights, 16,384 tokens of 147,456 bytes, 3 of work.
    assert refused.status == "failed" and "21.8 GB" in refused.text
    assert gpu.check_vram(plan, turing, None).status == "ok"


def test_no_gpu_is_a_failure_only_for_a_server_that_needs_one() -> None:
    assert gpu.missing_gpus(Plan(model="m"), "none").status == "failed"
    assert gpu.missing_gpus(Plan(), "none").status == "warning"
    on_cpu = Plan.parse(["--model", "m"], {"SGLANG_PLATFORM": "hiqcache_cpu"})
    assert [check.status for check in gpu.check_gpus(on_cpu)] == ["skipped"]
    assert not Plan.parse(["--device", "cpu"], {}).gpu


def test_torchs_cuda_release_is_read_without_torch() -> None:
    torch = pytest.importorskip("torch")
    built = gpu.torch_cuda()
    assert built == (
        None if not torch.version.cuda else tuple(map(int, torch.version.cuda.split(".")))
    )


def test_the_runtime_is_found_both_ways() -> None:
    assert check_runtime(Plan(), {"Runtimes": {"runc": {}, "nvidia": {}}}).status == "ok"
    cdi = {"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}
    assert check_runtime(Plan(), cdi).status == "ok"
    missing = check_runtime(Plan(), {"Runtimes": {"runc": {}}, "DiscoveredDevices": None})
    assert missing.status == "warning" and "nvidia-ctk" in missing.fix
