"""The offline twin on a tiny model of random weights: what goes through the codec, and what not."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.errors import UsageError
from hiqcache.lab.quality.offline import UNROUNDED, OfflineSpec, run_offline
from hiqcache.lab.quality.plots import plot_kl, plot_profile
from hiqcache.lab.quality.prompt import Prompt
from hiqcache.lab.quality.reference import fp8_e4m3, nvfp4
from hiqcache.lab.quality.report import as_text
from hiqcache.lab.quality.row import CODEC, NOISE, NOISE_FLOOR, PROFILE, Compared
from hiqcache.lab.quality.summary import conclude_offline, read_summary
from hiqcache.lab.quality.twin import Twin, equal
from hiqcache.lab.quality.variant import Variant, profile, through
from hiqcache.lab.row import Store, read

LAYERS, HEADS, VOCABULARY = 2, 3, 300
INT8 = get_codec("int8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Llama with 6 query and 3 KV heads of 16, saved as a checkpoint."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=6,
        num_key_value_heads=HEADS,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def twin(folder: str) -> Twin:
    return Twin(folder, "float32", "cpu")


PROMPTS = [
    Prompt("a", "text", tuple(range(1, 60)), tuple(range(60, 76))),
    Prompt("b", "needle", tuple(range(5, 90)), tuple(range(9, 25)), (7, 8), "12", 0.5),
]


L1 = Variant("L1", NOISE)


def test_only_the_chosen_part_goes_through_the_codec(twin: Twin) -> None:
    computed = twin.read_prefix(PROMPTS[0].prefix)
    keys, values = twin.restore(computed, L1)
    way = Variant("x", PROFILE, through(INT8), sides=("v",), layer=1, head=2)
    changed = twin.restore(computed, way)
    assert torch.equal(keys, changed[0]), "K stays"
    for layer, head in product(range(LAYERS), range(HEADS)):
        same = torch.equal(values[layer, head], changed[1][layer, head])
        assert same is ((layer, head) != (1, 2))


def test_the_whole_cache_is_what_the_codec_makes_of_each_row(twin: Twin) -> None:
    computed = twin.read_prefix(PROMPTS[0].prefix)
    restored = twin.restore(computed, Variant("int8", CODEC, through(INT8)))
    for side, before, after in zip(("k", "v"), computed, restored, strict=True):
        for layer in range(LAYERS):
            rows = before[layer].transpose(0, 1).bfloat16().contiguous()
            layout = INT8.layout(side, HEADS, rows.shape[-1])  # type: ignore[arg-type]
            expected = INT8.decode(INT8.encode(rows, layout), layout)
            assert torch.equal(after[layer].transpose(0, 1), expected.float())
        assert not torch.equal(after, before)


def test_fp8_without_scales_is_e4m3_and_stops_at_448() -> None:
    rows = torch.tensor([1.0, 1.06, 17.0, 500.0, -1e4, 2.0**-10]).bfloat16()
    assert fp8_e4m3(rows, "k").tolist() == [1.0, 1.0, 16.0, 448.0, -448.0, 0.0]


def test_nvfp4_rounds_16_values_to_e2m1_of_their_scale() -> None:
    rows = torch.zeros(1, 2, 32, dtype=torch.bfloat16)
    values = [6.0, -3.4, 2.6, 1.2, 0.2, -0.3, 5.2, -4.8]
    rows[0, 0, :8] = torch.tensor(values)
    rows[0, 1, 16:24] = torch.tensor(values) * 8
    expected = [6.0, -3.0, 3.0, 1.0, 0.0, -0.5, 6.0, -4.0]
    back = nvfp4(rows, "v")
    assert back[0, 0, :8].tolist() == expected
    assert back[0, 1, 16:24].tolist() == [8 * value for value in expected]
    assert back[0, 0, 8:].eq(0).all() and back[0, 1, :16].eq(0).all()


def test_a_score_is_the_model_reading_on(twin: Twin) -> None:
    """With the cache as computed, a score equals one forward pass over prefix and continuation."""
    prompt = PROMPTS[0]
    computed = twin.read_prefix(prompt.prefix)
    (score,) = twin.score([computed], prompt.prefix[-1], prompt.continuation)
    with torch.inference_mode():
        ids = torch.tensor([[*prompt.prefix, *prompt.continuation]])
        logits = twin.model(ids).logits[0, len(prompt.prefix) - 1 : -1]
    torch.testing.assert_close(score, torch.log_softmax(logits.double(), -1), atol=1e-4, rtol=0)


def test_an_answer_is_greedy_and_leaves_the_cache_alone(twin: Twin) -> None:
    prompt = PROMPTS[1]
    computed = twin.read_prefix(prompt.prefix)
    before = computed[0].clone(), computed[1].clone()
    other = twin.read_prefix(range(100, 100 + len(prompt.prefix)))
    answer, _ = twin.answer([computed, other], (prompt.prefix[-1], *prompt.question), 6)
    assert equal(before, computed)
    tokens = [*prompt.prefix, *prompt.question]
    for token in answer:
        with torch.inference_mode():
            assert int(twin.model(torch.tensor([tokens])).logits[0, -1].argmax()) == token
        tokens.append(token)


def test_chunks_change_no_more_than_the_last_bits(twin: Twin) -> None:
    whole = twin.read_prefix(PROMPTS[1].prefix)
    chunked = twin.read_prefix(PROMPTS[1].prefix, chunk=16)
    for left, right in zip(whole, chunked, strict=True):
        torch.testing.assert_close(left, right, atol=1e-4, rtol=1e-4)


def test_a_run_has_every_variant_and_its_summary(twin: Twin, tmp_path: Path) -> None:
    spec = OfflineSpec(
        prompts=PROMPTS,
        codecs=[get_codec(name) for name in ("bf16", "int8", "int8-compact")],
        profile_prompts=1,
        profile_codec=INT8,
        per_head=True,
        answers=2,
    )
    rows = list(run_offline(twin, spec, lambda ids: " ".join(map(str, ids))))
    assert sum(row.role == "profile" for row in rows) == len(profile(INT8, LAYERS, HEADS, True))
    settings = {
        "provenance": {"device_name": "a cpu", "commit": "0" * 40, "date": "2026-01-01T00:00:00"},
        "model": "tiny",
        "dtype": "float32",
        "codecs": ["bf16", "int8", "int8-compact"],
        "profile_codec": "int8",
        "prompts": {"source": "here", "count": 2, "prefix_tokens": [59, 85, 144]},
    }
    summary = conclude_offline(rows, settings, Store(tmp_path / "run"))
    variants = {name: item["figures"] for name, item in summary["comparisons"].items()}
    assert variants["bf16"]["identical_readings"] == 2
    assert variants["bf16"]["mean_kl"]["value"] == 0
    assert variants["int8"]["mean_kl"]["value"] > 0
    assert variants["int8"]["mean_kl"] == variants["int8-compact"]["mean_kl"]
    assert (
        variants["int8"]["mean_kl"]["value"] >= variants["int8"]["mean_kl_of_top_tokens"]["value"]
    )
    assert variants[UNROUNDED]["mean_kl"]["value"] < variants["int8"]["mean_kl"]["value"]
    assert len(summary["profile"]) == 2 * LAYERS * (1 + HEADS)
    assert list(map(Compared.parse, read(tmp_path / "run/rows.jsonl"))) == rows
    assert "offline twin, float32" in as_text(read_summary(tmp_path / "run"))
    for draw in (plot_kl, plot_profile):
        ElementTree.fromstring(draw(tmp_path / "plot.svg", summary).read_text())

    # In bfloat16 the codecs are held against the noise floor, unless it is zero.
    others = [row for row in rows if row.comparison != NOISE_FLOOR]
    for number, (floor, held) in enumerate((("int8", True), ("bf16", False))):
        noise = [replace(row, comparison=NOISE_FLOOR) for row in rows if row.comparison == floor]
        store = Store(tmp_path / str(number))
        bfloat16 = settings | {"dtype": "bfloat16"}
        judged = conclude_offline([*others, *noise], bfloat16, store)["targets"]
        assert any("noise floor" in row["target"] for row in judged["int8"]) is held


def test_a_model_that_keeps_only_a_window_is_refused(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=16,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="full attention in every layer"):
        Twin(str(tmp_path), "float32", "cpu").read_prefix(range(40))


def test_a_missing_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be loaded"):
        Twin(str(tmp_path / "none"), "float32", "cpu")
