"""Small models with random weights: KV shapes and stacks that the demo model does not have.

What the model answers means nothing; what counts is which pools SGLang builds for it and that
every row of each comes back from L2 as the codec makes it, which the probe looks at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hiqcache.codec.record import SIDES
from hiqcache.codec.registry import get_codec
from tests.engine.case import prompts
from tests.engine.conftest import L1_TOKENS, Probed, probed_server
from tests.engine.small_models import FULL, GEMMA3, MELLUM, WINDOW, SmallModel

pytestmark = pytest.mark.engine

CODEC = "int8-compact"
DOCUMENTS = 6


@dataclass(frozen=True)
class Served:
    model: SmallModel
    probed: Probed
    answers: list[Any]


@pytest.fixture(scope="module", params=[GEMMA3, MELLUM], ids=lambda case: case.name)
def served(
    request: pytest.FixtureRequest,
    model: str,
    out: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    small: SmallModel = request.param
    folder = small.write(tmp_path_factory.mktemp(small.name), Path(model))
    arguments = ["--load-format", "dummy", "--hicache-ratio", "4", *small.arguments]
    with probed_server(str(folder), out, small.name, CODEC, arguments) as probed:
        client = probed.server.client
        for text in prompts(DOCUMENTS):
            client.ask(text, 1)
        yield Served(small, probed, [client.ask(text, 1) for text in prompts(DOCUMENTS)])


def test_every_row_of_every_pool_comes_back_within_the_bound(served: Served) -> None:
    assert sum(answer.prompt_tokens for answer in served.answers) > L1_TOKENS
    for answer in served.answers:
        assert answer.host_tokens >= 0.95 * (answer.prompt_tokens - 1)
    for name, report in served.probed.report()["pools"].items():
        assert report["restored_rows"] > 0, name
        assert report["bound_violations"] == 0, name
        assert report["wrong_rows"] == 0, name
        assert report["unpoisoned_rows"] == 0, name
        assert report["dirty_padding_bytes"] == 0, name
        assert report["differing_rows"] > 0, name


def test_each_pool_holds_its_layers_records(served: Served) -> None:
    config = served.model.full_config
    kinds = config.get("layer_types", [FULL] * config["num_hidden_layers"])
    layers = {"kv": kinds.count(FULL), "swa": kinds.count(WINDOW)}
    reports = served.probed.report()["pools"]
    assert set(reports) == {name for name, count in layers.items() if count}
    shape = config["num_key_value_heads"], config["head_dim"]
    records = sum(get_codec(CODEC).layout(side, *shape).record_bytes for side in SIDES)
    for name, report in reports.items():
        assert report["layers"] == layers[name]
        assert report["size_per_token"] == layers[name] * records
        # SGLang's ratio, and one token of padding.
        assert report["tokens"] == 4 * report["device_tokens"] + 1
        assert report["buffer_bytes"] == report["tokens"] * report["size_per_token"]
