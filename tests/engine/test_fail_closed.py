"""Asked for an encoded L2 and unable to give it, a real server stops and says why.

What must hold in each case: a non-zero exit code that is not a kill, one sentence from HiQCache,
and no moment at which it served. A case that ends in the first process, one that ends in the
scheduler and those that break an import start `sglang.launch_server` as a user would; the others
are forked (tests/engine/warm.py).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.engine.conftest import start_server

pytestmark = pytest.mark.engine

EXIT_SECONDS = 240
HICACHE = "--enable-hierarchical-cache"
BROKEN_HOOK = Path(__file__).parent / "broken_hook"


@dataclass(frozen=True)
class Case:
    """A start that must be refused.

    Parameters
    ----------
    reason
        A pattern that HiQCache's one sentence must match.
    cold
        Start it as a user would.
    """

    name: str
    reason: str
    arguments: tuple[str, ...] = (HICACHE,)
    environment: dict[str, str] = field(default_factory=lambda: {"HIQCACHE_CODEC": "int8"})
    cold: bool = False


CASES = [
    Case(
        "unknown-codec",
        r"HIQCACHE_CODEC='int9'.*expected one of off, bf16, int8, int8-compact",
        environment={"HIQCACHE_CODEC": "int9"},
        cold=True,
    ),
    Case(
        "misspelt-variable",
        r"unknown variable HIQCACHE_CODEK, which is close to the setting HIQCACHE_CODEC",
        environment={"HIQCACHE_CODEK": "int8"},
    ),
    Case(
        "unparsable-alias",
        r"SGLANG_EXPERIMENTAL_HICACHE_INT8='yes'.*expected one of 0, 1",
        environment={"SGLANG_EXPERIMENTAL_HICACHE_INT8": "yes"},
    ),
    Case(
        "unknown-transfer",
        r"HIQCACHE_TRANSFER='dma'.*expected one of",
        environment={"HIQCACHE_CODEC": "int8", "HIQCACHE_TRANSFER": "dma"},
    ),
    Case(
        "missing-hook-target",
        r"has no sglang\.srt\.mem_cache\.pool_host\.mha\.get_mha_host_pool_cls",
        environment={
            "HIQCACHE_CODEC": "int8",
            "PYTHONPATH": str(BROKEN_HOOK),
            "BREAK": "remove",
        },
        cold=True,
    ),
    Case(
        "changed-hook-target",
        r"get_mha_host_pool_cls of SGLang .* takes \(pool, buffer_info\), expected",
        environment={
            "HIQCACHE_CODEC": "int8",
            "PYTHONPATH": str(BROKEN_HOOK),
            "BREAK": "rename",
        },
        cold=True,
    ),
    Case(
        "no-plugin-import",
        r"the plugin failed to load: ImportError: broken on purpose",
        environment={
            "HIQCACHE_CODEC": "int8",
            "PYTHONPATH": str(BROKEN_HOOK),
            "BREAK": "import",
        },
        cold=True,
    ),
    Case("no-hierarchical-cache", r"add --enable-hierarchical-cache", arguments=()),
    # Other arguments are refused by the same call: tests/engine/test_refusals.py has them all.
    Case(
        "l3-backend",
        r"supports --hicache-storage-backend file, dynamic, mooncake, got nixl",
        arguments=(HICACHE, "--hicache-storage-backend", "nixl"),
    ),
    # From here on the scheduler says no, once weights are loaded and buffers are known.
    Case(
        "direct-layout",
        r"--hicache-mem-layout layer_first and page_first, got page_first_direct",
        arguments=(HICACHE, "--hicache-io-backend", "direct"),
    ),
    Case(
        "too-little-memory",
        r"L2 needs \d+\.\d+ GB.*after the 10 GiB that SGLang keeps in reserve",
        arguments=(HICACHE, "--hicache-size", "900"),
        cold=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_start_is_refused(case: Case, model: str, out: Path) -> None:
    refuse(case, model, out)


def test_mla_is_refused(model: str, out: Path, tmp_path: Path) -> None:
    refuse(
        Case("mla", r"supports MHA and GQA models, got MLA attention"),
        mla_checkpoint(Path(model), tmp_path),
        out,
    )


def refuse(case: Case, model: str, out: Path) -> None:
    log = out / f"refused-{case.name}.log"
    with start_server(model, log, case.arguments, case.environment, cold=case.cold) as server:
        code = server.wait_exit(EXIT_SECONDS)
        output = server.output()
    assert code > 0, f"expected an exit code of its own, got {code}"
    sentences = {
        line for line in output.splitlines() if line.startswith("HiQCache stops the start: ")
    }
    assert len(sentences) == 1, sentences
    assert re.search(case.reason, sentences.pop())
    assert "The server is fired up" not in output
    assert "Uvicorn running" not in output


def mla_checkpoint(llama: Path, folder: Path) -> str:
    """A DeepSeek-V2 configuration around the demo model's tokenizer; weights are not reached."""
    config = json.loads((llama / "config.json").read_text())
    config |= {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_key_value_heads": config["num_attention_heads"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((llama / name).read_bytes())
    return str(folder)
