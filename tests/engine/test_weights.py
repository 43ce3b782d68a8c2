"""The identity of weights: what changes it, and from when to when there is none."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.engine.pools import sglang_context

pytestmark = pytest.mark.engine

CONFIG = {"_name_or_path": "/models/a", "rope_theta": 10000.0, "hidden_size": 8}


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    with sglang_context():
        yield


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).to(torch.bfloat16)
    made.register_buffer("scale", torch.ones(3))
    made.register_buffer("cos_sin_cache", torch.ones(3), persistent=False)
    return made


def told(module: torch.nn.Module, **config: Any) -> str:
    from hiqcache.engine.weights import checksum

    return checksum(module, CONFIG | config)


def test_the_same_weights_are_the_same_wherever_they_lie() -> None:
    assert told(model()) == told(copy.deepcopy(model()), _name_or_path="/elsewhere/b")


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "scale"])
def test_one_bit_of_any_tensor_makes_other_weights(name: str) -> None:
    changed = model()
    tensor = {**dict(changed.named_parameters()), **dict(changed.named_buffers())}[name]
    tensor.data.view(torch.uint8).view(-1)[-1] ^= 1
    assert told(changed) != told(model())


def test_swapped_values_and_another_configuration_make_other_weights() -> None:
    swapped = model()
    with torch.no_grad():
        swapped[0].weight[:] = swapped[0].weight.flip(0).clone()
    assert told(swapped) != told(model())
    assert told(model(), rope_theta=5e5) != told(model())


def test_a_table_that_grows_while_a_server_runs_does_not() -> None:
    grown = model()
    grown.cos_sin_cache = torch.ones(64)
    assert told(grown) == told(model())


class Server:
    """A scheduler's weights and what SGLang calls around them, without a scheduler."""

    def __init__(self) -> None:
        from hiqcache.engine.weights import Weights

        self.weights = Weights()
        self.updater = SimpleNamespace(offload_tags=set(), _session=None)
        config = SimpleNamespace(to_dict=lambda: CONFIG)
        self.runner = SimpleNamespace(
            is_draft_worker=False, model=model(), model_config=SimpleNamespace(hf_config=config)
        )
        self.weights.loaded(self.runner)

    def update(self, seed: int, flush: bool) -> None:
        def original(updater: Any, request: Any) -> None:
            assert self.weights.identity is None, "L3 waits while weights are being loaded"
            self.runner.model = model(seed)
            if flush:
                self.weights.caches_emptied()

        self.weights.updating(original, self.updater, None)

    @property
    def identity(self) -> str | None:
        return self.weights.identity


def test_an_update_that_empties_the_caches_names_the_new_weights() -> None:
    server = Server()
    server.weights.attached()
    first = server.identity
    assert first is not None and len(first) == 16
    server.update(1, flush=True)
    second = server.identity
    assert second not in (None, first)
    server.update(0, flush=True)
    assert server.identity == first


def test_without_empty_caches_l3_waits_until_they_are() -> None:
    server = Server()
    server.weights.attached()
    server.update(1, flush=False)
    assert server.identity is None
    server.weights.caches_emptied()
    assert server.identity is not None


def test_l3_waits_until_a_session_of_updates_has_ended() -> None:
    server = Server()
    server.weights.attached()
    first = server.identity

    def begin(updater: Any, request: Any) -> None:
        updater._session = object()

    def end(updater: Any, request: Any) -> None:
        updater._session = None

    server.weights.updating(begin, server.updater, None)
    assert server.identity is None, "a trainer may write by itself from here on"
    server.update(1, flush=True)
    assert server.identity is None
    server.weights.updating(end, server.updater, None)
    assert server.identity not in (None, first)
    # The same, but what ends it changes the weights once more.
    server.weights.updating(begin, server.updater, None)
    server.update(0, flush=True)

    def end_otherwise(updater: Any, request: Any) -> None:
        server.runner.model = model(2)
        updater._session = None

    server.weights.updating(end_otherwise, server.updater, None)
    assert server.identity is None
    server.weights.caches_emptied()
    assert server.identity not in (None, first)


def test_a_call_that_changed_nothing_changes_nothing() -> None:
    server = Server()
    server.weights.attached()
    first = server.identity
    server.update(0, flush=False)
    assert server.identity == first


def test_without_an_l3_nothing_is_computed_and_an_attached_one_knows_the_last_weights() -> None:
    server = Server()
    server.update(1, flush=True)
    assert server.identity is None
    server.weights.attached()
    later = server.identity
    fresh = Server()
    fresh.runner.model = model(1)
    fresh.weights.attached()
    assert later == fresh.identity


def test_l3_attached_over_caches_of_older_weights_waits() -> None:
    server = Server()
    server.update(1, flush=False)
    server.weights.attached()
    assert server.identity is None
    server.weights.caches_emptied()
    assert server.identity is not None


def test_weights_that_were_taken_off_the_device_are_not_read() -> None:
    from sglang.srt.constants import GPU_MEMORY_TYPE_WEIGHTS

    server = Server()
    server.weights.attached()
    server.updater.offload_tags.add(GPU_MEMORY_TYPE_WEIGHTS)
    server.update(1, flush=True)
    server.runner.model = None
    server.weights.caches_emptied()
    assert server.identity is None
    server.updater.offload_tags.clear()
    server.update(1, flush=True)
    assert server.identity is not None


def test_weights_that_cannot_be_read_refuse_an_l3() -> None:
    from hiqcache.errors import HiQCacheError

    server = Server()
    server.runner.model = None
    with pytest.raises(HiQCacheError, match="cannot be read"):
        server.weights.attached()
    assert server.identity is None
