"""Small models with random weights: KV shapes that the demo model does not have, on real servers.

What the model answers means nothing; what counts is that SGLang builds its plain pool for it and
that every row comes back from L2 as the codec makes it, which the probe looks at.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hiqcache.capacity import by_ratio
from hiqcache.geometry import Geometry
from tests.engine.case import prompts
from tests.engine.conftest import L1_TOKENS, Probed, probed_server

pytestmark = pytest.mark.engine

DOCUMENTS = 6
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


@dataclass(frozen=True)
class Case:
    """A model: what its config.json says beside `SMALL`."""

    name: str
    config: dict[str, Any]


GEMMA3 = Case(
    # Windows of 32 tokens in four layers of six: SGLang masks, and keeps every token.
    "gemma3",
    {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "head_dim": 40,
        "query_pre_attn_scalar": 40,
        "sliding_window": 32,
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "hidden_activation": "gelu_pytorch_tanh",
    },
)


@pytest.fixture(scope="module", params=[GEMMA3], ids=lambda case: case.name)
def served(
    request: pytest.FixtureRequest,
    model: str,
    out: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    case: Case = request.param
    folder = tmp_path_factory.mktemp(case.name)
    (folder / "config.json").write_text(json.dumps(SMALL | case.config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((Path(model) / name).read_bytes())
    arguments = ["--load-format", "dummy", "--hicache-ratio", "4"]
    with probed_server(str(folder), out, case.name, "int8-compact", arguments) as probed:
        client = probed.server.client
        for text in prompts(DOCUMENTS):
            client.ask(text, 1)
        yield case, folder, probed, [client.ask(text, 1) for text in prompts(DOCUMENTS)]


def test_every_row_comes_back_within_the_bound(served: tuple[Case, Path, Probed, Any]) -> None:
    _, _, probed, answers = served
    assert sum(answer.prompt_tokens for answer in answers) > L1_TOKENS
    for answer in answers:
        assert answer.host_tokens >= 0.95 * (answer.prompt_tokens - 1)
    report = probed.report()
    assert report["restored_rows"] > 0
    assert report["bound_violations"] == 0
    assert report["unpoisoned_rows"] == 0
    assert report["dirty_padding_bytes"] == 0
    assert report["differing_rows"] > 0


def test_the_pool_is_what_the_capacity_command_says(
    served: tuple[Case, Path, Probed, Any],
) -> None:
    case, folder, probed, _ = served
    config = json.loads((folder / "config.json").read_text())
    geometry = Geometry.from_config(config, case.name)
    report = probed.report()
    capacity = by_ratio(geometry, "int8-compact", 4.0, report["device_tokens"])
    assert report["layers"] == config["num_hidden_layers"]
    assert report["tokens"] == capacity.tokens
    assert report["size_per_token"] == capacity.bytes_per_token
    assert report["buffer_bytes"] == capacity.bytes_allocated
