"""Geometries: what a config.json says, as SGLang reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hiqcache.capacity import bytes_per_token
from hiqcache.errors import UsageError
from hiqcache.geometries import shipped_names
from hiqcache.geometry import Geometry

SHIPPED = {
    "gemma-2-27b": (46, 16, 128),
    "gemma-2-2b": (26, 4, 256),
    "gemma-2-9b": (42, 8, 256),
    "gemma-3-12b": (48, 8, 256),
    "gemma-3-1b": (26, 1, 256),
    "gemma-3-27b": (62, 16, 128),
    "gemma-3-4b": (34, 4, 256),
    "gpt-oss-120b": (36, 8, 64),
    "llama-3.1-405b": (126, 8, 128),
    "llama-3.1-70b": (80, 8, 128),
    "llama-3.1-8b": (32, 8, 128),
    "llama-3.2-1b": (16, 8, 64),
    "llama-3.2-3b": (28, 8, 128),
    "mistral-7b-v0.3": (32, 8, 128),
    "mistral-large-2407": (88, 8, 128),
    "mixtral-8x22b": (56, 8, 128),
    "mixtral-8x7b": (32, 8, 128),
    "olmo-2-7b": (32, 32, 128),
    "phi-3-mini": (32, 32, 96),
    "phi-4-mini": (32, 8, 128),
    "phi-4": (40, 10, 128),
    "qwen2.5-0.5b": (24, 2, 64),
    "qwen2.5-1.5b": (28, 2, 128),
    "qwen2.5-14b": (48, 8, 128),
    "qwen2.5-32b": (64, 8, 128),
    "qwen2.5-3b": (36, 2, 128),
    "qwen2.5-72b": (80, 8, 128),
    "qwen2.5-7b": (28, 4, 128),
    "qwen3-0.6b": (28, 8, 128),
    "qwen3-1.7b": (28, 8, 128),
    "qwen3-14b": (40, 8, 128),
    "qwen3-235b-a22b": (94, 4, 128),
    "qwen3-30b-a3b": (48, 4, 128),
    "qwen3-32b": (64, 8, 128),
    "qwen3-4b": (36, 8, 128),
    "qwen3-8b": (36, 8, 128),
    "smollm2-1.7b": (24, 32, 64),
    "smollm2-135m": (30, 3, 64),
    "smollm2-360m": (32, 5, 64),
    "smollm3-3b": (36, 4, 128),
}
# Their windows have a pool of their own, unless SGLang runs with --disable-hybrid-swa-memory.
ONE_POOL = {"gpt-oss-120b"}

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 151936,
}
BASE = {"num_hidden_layers": 4, "num_attention_heads": 16, "hidden_size": 1024}
GQA = BASE | {"num_key_value_heads": 2, "head_dim": 64}


def shape(config: dict[str, Any]) -> tuple[int, int, int, int]:
    g = Geometry.from_config(config, "model")
    return g.layers, g.kv_heads, g.head_dim, g.v_head_dim


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_geometry_has_the_models_figures(name: str) -> None:
    geometry = Geometry.load(name, one_pool=name in ONE_POOL)
    layers, kv_heads, head_dim = SHIPPED[name]
    found = (geometry.layers, geometry.kv_heads, geometry.head_dim, geometry.v_head_dim)
    assert found == (layers, kv_heads, head_dim, head_dim)
    assert geometry.name == name


def test_every_shipped_geometry_is_in_the_table() -> None:
    assert shipped_names() == tuple(sorted(SHIPPED))


@pytest.mark.parametrize("name", sorted(ONE_POOL))
def test_a_pool_of_windows_is_refused_with_the_flag(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: .*--disable-hybrid-swa-memory"):
        Geometry.load(name)


def test_a_whole_config_equals_the_shipped_geometry(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    by_folder = Geometry.load(str(tmp_path))
    by_file = Geometry.load(str(tmp_path / "config.json"))
    shipped = Geometry.load("Qwen3-8B")
    for other in (by_folder, by_file):
        assert (other.layers, other.kv_heads, other.head_dim, other.attention_heads) == (
            shipped.layers,
            shipped.kv_heads,
            shipped.head_dim,
            shipped.attention_heads,
        )


READ = {
    "head_dim absent": (BASE | {"num_key_value_heads": 2}, (4, 2, 64, 64)),
    "head_dim null": (GQA | {"head_dim": None}, (4, 2, 64, 64)),
    "head_dim is not hidden over heads": (GQA | {"head_dim": 128}, (4, 2, 128, 128)),
    "kv heads absent": (BASE, (4, 16, 64, 64)),
    "kv heads null": (BASE | {"num_key_value_heads": None}, (4, 16, 64, 64)),
    "V narrower than K": (GQA | {"v_head_dim": 48}, (4, 2, 64, 48)),
    "v_head_dim of 0": (GQA | {"v_head_dim": 0}, (4, 2, 64, 64)),
    "no MLA in spite of the key": (GQA | {"kv_lora_rank": None}, (4, 2, 64, 64)),
    "all layers full": (GQA | {"layer_types": ["full_attention"] * 4}, (4, 2, 64, 64)),
    "window declared but unused": (
        GQA | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False},
        (4, 2, 64, 64),
    ),
    # Windows that only mask: SGLang keeps every token of every layer in the plain pool.
    "gemma 2": (GQA | {"architectures": ["Gemma2ForCausalLM"]}, (4, 2, 64, 64)),
    "gemma 3": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": GQA | {"sliding_window_pattern": 6},
        },
        (4, 2, 64, 64),
    ),
    "sliding layers": (
        GQA | {"layer_types": ["sliding_attention", "full_attention"] * 2},
        (4, 2, 64, 64),
    ),
    "step 3.5, whose windows HiCache puts into the plain pool": (
        GQA | {"architectures": ["Step3p5ForCausalLM"]},
        (4, 2, 64, 64),
    ),
    "text_config": ({"model_type": "x", "text_config": GQA}, (4, 2, 64, 64)),
    "llm_config": ({"llm_config": GQA, "text_config": {}}, (4, 2, 64, 64)),
    "thinker_config": ({"thinker_config": {"text_config": GQA}}, (4, 2, 64, 64)),
    "the top of a Llava": (
        GQA | {"architectures": ["LlavaLlamaForCausalLM"], "text_config": {"n_layer": 99}},
        (4, 2, 64, 64),
    ),
    "falcon, multi-query": (
        BASE | {"model_type": "falcon", "multi_query": True},
        (4, 1, 64, 64),
    ),
    "falcon, new architecture": (
        BASE
        | {
            "model_type": "falcon",
            "multi_query": True,
            "new_decoder_architecture": True,
            "num_kv_heads": 8,
        },
        (4, 8, 64, 64),
    ),
    "gpt_bigcode": (
        {"n_layer": 4, "n_head": 16, "n_embd": 1024, "multi_query": True},
        (4, 1, 64, 64),
    ),
    "mpt": (
        {
            "model_type": "mpt",
            "n_layers": 4,
            "n_heads": 16,
            "d_model": 1024,
            "attn_config": {"kv_n_heads": 4},
        },
        (4, 4, 64, 64),
    ),
    "chatglm": (
        {
            "num_layers": 4,
            "num_attention_heads": 16,
            "hidden_size": 1024,
            "multi_query_group_num": 2,
        },
        (4, 2, 64, 64),
    ),
    "minimax m2, whose attn_type_list has softmax attention alone": (
        GQA | {"model_type": "minimax_m2", "attn_type_list": [1, 1, 1, 1]},
        (4, 2, 64, 64),
    ),
    "granite 4 without Mamba layers": (
        GQA
        | {
            "model_type": "granitemoehybrid",
            "mamba_d_state": 128,
            "layer_types": ["attention"] * 4,
        },
        (4, 2, 64, 64),
    ),
}


@pytest.mark.parametrize(("config", "expected"), READ.values(), ids=READ)
def test_a_config_is_read_as_sglang_reads_it(
    config: dict[str, Any], expected: tuple[int, int, int, int]
) -> None:
    assert shape(config) == expected


REFUSED = {
    "MLA": (GQA | {"kv_lora_rank": 512}, "latent attention"),
    "nested MLA": ({"language_config": GQA | {"kv_lora_rank": 512}}, "latent attention"),
    "gpt-oss": (
        GQA | {"architectures": ["GptOssForCausalLM"]},
        "pool of their own; --disable-hybrid-swa-memory",
    ),
    "llama 4": (
        {"architectures": ["Llama4ForConditionalGeneration"], "text_config": GQA},
        "pool of their own; --disable-hybrid-swa-memory",
    ),
    "a window pool asked for by key": (GQA | {"is_hybrid_swa": True}, "pool of their own"),
    "gemma 4": (GQA | {"architectures": ["Gemma4ForCausalLM"]}, "layers of another shape"),
    "deepseek v4": (GQA | {"architectures": ["DeepseekV4ForCausalLM"]}, "of another shape"),
    "linear layers": (
        GQA | {"layer_types": ["linear_attention", "full_attention"] * 2},
        "linear_attention",
    ),
    "qwen3-next": (GQA | {"model_type": "qwen3_next"}, "linear"),
    "unknown Mamba hybrid": (GQA | {"mamba_d_state": 16}, "state-space"),
    "pure Mamba": ({"model_type": "mamba", "num_hidden_layers": 4}, "state-space"),
    "encoder-decoder": (GQA | {"is_encoder_decoder": True}, "encoder"),
    "cross-attention": (
        {"architectures": ["MllamaForConditionalGeneration"], "text_config": GQA},
        "cross-attention",
    ),
    "layers of different shapes": (GQA | {"architectures": ["DeciLMForCausalLM"]}, "shapes"),
    "looped layers": (GQA | {"architectures": ["IQuestLoopCoderForCausalLM"]}, "several times"),
    "no layers": ({"num_attention_heads": 16, "hidden_size": 1024}, "num_hidden_layers"),
    "no heads": ({"num_hidden_layers": 4, "hidden_size": 1024}, "num_attention_heads"),
    "no hidden size": ({"num_hidden_layers": 4, "num_attention_heads": 16}, "hidden_size"),
    "nested, KV heads left to a default": ({"text_config": BASE}, "num_key_value_heads"),
    "empty": ({}, "num_hidden_layers"),
    "minimax m1": (GQA | {"attn_type_list": [0, 0, 0, 1]}, "linear"),
    "an attn_type_list of another type": (GQA | {"attn_type_list": 5}, "linear"),
    "KV heads by another name": (BASE | {"n_kv_heads": 8}, "n_kv_heads 8"),
    "KV heads by Megatron's name": (BASE | {"num_query_groups": 8}, "num_query_groups 8"),
    "KV heads in a part about attention": (
        BASE | {"attention": {"num_kv_heads": 4}},
        "num_kv_heads 4",
    ),
    "a hidden size that heads do not divide": (BASE | {"hidden_size": 1000}, "no multiple"),
    "a string": (GQA | {"num_hidden_layers": "4"}, "'4'"),
    "a float": (GQA | {"head_dim": 64.0}, "64.0"),
    "a boolean": (GQA | {"num_key_value_heads": True}, "True"),
    "zero": (GQA | {"num_hidden_layers": 0}, "got 0"),
    "negative": (GQA | {"num_key_value_heads": -8}, "-8"),
    "beyond reason": (GQA | {"num_hidden_layers": 10**400}, "num_hidden_layers"),
    "negative V": (GQA | {"v_head_dim": -1}, "-1"),
    "architectures of another type": ({"architectures": 5}, "num_hidden_layers"),
}


@pytest.mark.parametrize(("config", "words"), REFUSED.values(), ids=REFUSED)
def test_a_config_that_cannot_be_counted_is_refused_by_name(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        Geometry.from_config(config, "some-model")
    assert words in str(caught.value)
    assert "some-model" in str(caught.value)


MINIMAX_M2 = {
    "architectures": ["MiniMaxM2ForCausalLM"],
    "model_type": "minimax_m2",
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "hidden_size": 3072,
    "num_attention_heads": 48,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
}
MISTRAL_7B = {
    "dim": 4096,
    "n_layers": 32,
    "head_dim": 128,
    "hidden_dim": 14336,
    "n_heads": 32,
    "n_kv_heads": 8,
    "norm_eps": 1e-05,
    "vocab_size": 32768,
}


@pytest.mark.parametrize(
    ("file", "config", "expected"),
    [
        ("config.json", MINIMAX_M2, 253_952),
        ("params.json", MISTRAL_7B, 131_072),
        ("params.json", MISTRAL_7B | {"moe": {"num_experts": 8}, "kv_lora_rank": None}, 131_072),
    ],
    ids=["MiniMax-M2.7", "Mistral", "Mixtral"],
)
def test_a_folder_as_published_is_counted(
    file: str, config: dict[str, Any], expected: int, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(json.dumps(config))
    geometry = Geometry.load(str(tmp_path))
    assert bytes_per_token(geometry, "bf16") == expected
    assert geometry.notes == ()


def test_what_the_config_leaves_open_is_said() -> None:
    heads, dim = Geometry.from_config(BASE, "m").notes[::-1]
    assert heads.startswith("the number of KV heads is not given: 16")
    assert dim.startswith("head_dim is not given: 64")
    (disagree,) = Geometry.from_config(GQA | {"num_kv_heads": 4}, "m").notes
    assert disagree == "num_kv_heads 4 counts, as in SGLang, and not num_key_value_heads 2"


FP8 = {
    "ModelOpt's file": ("hf_quant_config.json", {"quantization": {"kv_cache_quant_algo": "FP8"}}),
    "ModelOpt's file, flat": ("hf_quant_config.json", {"kv_cache_quant_algo": "fp8"}),
    "ModelOpt in the config": ("", {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}),
    "compressed-tensors": ("", {"kv_cache_scheme": {"type": "float", "num_bits": 8}}),
}


@pytest.mark.parametrize(("file", "content"), FP8.values(), ids=FP8)
def test_a_checkpoint_that_asks_for_an_fp8_kv_cache_is_said_to(
    file: str, content: dict[str, Any], tmp_path: Path
) -> None:
    config = QWEN3_8B if file else QWEN3_8B | {"quantization_config": content}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if file:
        (tmp_path / file).write_text(json.dumps(content))
    (note,) = Geometry.load(str(tmp_path)).notes
    assert note.startswith(file or "config.json")
    assert "--kv-cache-dtype bfloat16" in note


@pytest.mark.parametrize(
    "content",
    [{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, {"quantization": 5}, {}],
)
def test_quantised_weights_alone_change_nothing(content: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(content))
    assert Geometry.load(str(tmp_path)).notes == ()


def test_an_unreadable_quantisation_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    (tmp_path / "hf_quant_config.json").write_text("{")
    with pytest.raises(UsageError, match="hf_quant_config.json is not JSON"):
        Geometry.load(str(tmp_path))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b", "QWEN3-8B"])
def test_an_owner_is_no_part_of_a_name(name: str) -> None:
    assert Geometry.load(name) == Geometry.load("qwen3-8b")


def test_a_folder_of_that_path_comes_before_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    (tmp_path / "Qwen" / "Qwen3-8B" / "config.json").write_text(json.dumps(GQA))
    assert Geometry.load("Qwen/Qwen3-8B").layers == 4


@pytest.mark.parametrize("typed", ["qwen38b", "Qwen/Qwen3_8B", "qwen3-8b-instruct"])
def test_a_misspelt_name_is_answered_with_the_one_meant(typed: str) -> None:
    with pytest.raises(UsageError, match="did you mean qwen3-8b"):
        Geometry.load(typed)


@pytest.mark.parametrize("source", ["/dev/zero", "a\0b", "x" * 5000, "/", "/root\ud800"])
def test_what_is_no_file_of_a_model_is_refused(source: str) -> None:
    with pytest.raises(UsageError):
        Geometry.load(source)


@pytest.mark.parametrize("architecture", ["GptOssForCausalLM", "Llama4ForConditionalGeneration"])
def test_one_pool_for_all_layers_is_counted(architecture: str) -> None:
    config = GQA | {"architectures": [architecture]}
    geometry = Geometry.from_config(config, "m", one_pool=True)
    assert (geometry.layers, geometry.kv_heads) == (4, 2)


@pytest.mark.parametrize("architecture", ["Gemma4ForCausalLM", "MiMoV2FlashForCausalLM"])
def test_layers_of_two_shapes_are_refused_in_one_pool_too(architecture: str) -> None:
    with pytest.raises(UsageError, match="layers of another shape"):
        Geometry.from_config(GQA | {"architectures": [architecture]}, "m", one_pool=True)


def test_a_missing_file_is_answered_with_the_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qwen3-8b"):
        Geometry.load(str(tmp_path / "nothing.json"))
    with pytest.raises(UsageError, match="qwen3-8b"):
        Geometry.load(str(tmp_path))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[" * 200_000, b'"a string"', b"[1, 2]", b"null"],
    ids=["empty", "cut off", "binary", "deep", "string", "list", "null"],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="JSON|object"):
        Geometry.load(str(path))


@pytest.mark.parametrize(
    ("kv_heads", "tp", "local"),
    [
        (8, 1, 8),
        (8, 2, 4),
        (8, 4, 2),
        (8, 8, 1),
        (2, 4, 1),
        (8, 16, 1),
        (8, 32, 1),
        (3, 3, 1),
        (1, 4, 1),
        (2, 1, 2),
    ],
)
def test_heads_are_split_and_then_replicated(kv_heads: int, tp: int, local: int) -> None:
    assert Geometry("m", 4, kv_heads, 64, 64).local_heads(tp) == local


@pytest.mark.parametrize(
    ("kv_heads", "attention_heads", "tp"),
    [(8, 32, 3), (8, 48, 12), (3, 9, 2), (2, 14, 4), (8, 32, 0), (8, 32, -1)],
)
def test_a_tp_that_does_not_divide_is_refused(kv_heads: int, attention_heads: int, tp: int) -> None:
    with pytest.raises(UsageError, match="tensor parallelism"):
        Geometry("m", 4, kv_heads, 64, 64, attention_heads).local_heads(tp)


class TestAgainstSGLang:
    """SGLang's own reading of the same configurations."""

    @pytest.fixture(scope="class")
    def model_config(self) -> Any:
        pytest.importorskip("sglang", reason="needs the sglang extra")
        from sglang.srt.configs import model_config

        return model_config

    @pytest.mark.parametrize("name", SHIPPED)
    def test_shape_and_split_are_sglangs(
        self, model_config: Any, tmp_path: Path, name: str
    ) -> None:
        geometry = Geometry.load(name, one_pool=name in ONE_POOL)
        source = Path(__file__).parents[2] / "hiqcache" / "geometries" / f"{name}.json"
        (tmp_path / "config.json").write_text(source.read_text())
        plain = model_config.ModelConfig(str(tmp_path))
        assert plain.is_hybrid_swa == (name in ONE_POOL)
        theirs = model_config.ModelConfig(str(tmp_path), disable_hybrid_swa_memory=True)
        assert not theirs.is_hybrid_swa
        assert theirs.attention_arch is model_config.AttentionArch.MHA
        assert geometry.layers == theirs.num_attention_layers
        assert (geometry.head_dim, geometry.v_head_dim) == (theirs.head_dim, theirs.v_head_dim)
        for tp in (1, 2, 4, 8, 16):
            try:
                local = geometry.local_heads(tp)
            except UsageError:
                continue  # SGLang asserts when it builds the layers
            assert local == theirs.get_num_kv_heads(tp)

    def test_every_architecture_with_another_pool_is_refused(self, model_config: Any) -> None:
        import sglang.srt.models as models

        names: set[str] = set()
        for source in Path(models.__path__[0]).rglob("*.py"):
            names |= set(re.findall(r"^class (\w+)", source.read_text(), re.MULTILINE))
        hybrid = {
            name
            for name in names
            if model_config.is_hybrid_swa_model([name])
            or model_config.is_encoder_decoder_model([name])
            or name in model_config.PURE_SSM_ARCHITECTURES
        }
        assert len(hybrid) > 20
        windowed = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
        # Their windows leave their own pool as soon as HiCache is on.
        for name in sorted(hybrid - {"Step3p5ForCausalLM", "Step3p7ForConditionalGeneration"}):
            # A pure state-space model is known by its type: it has no attention heads.
            config = GQA | windowed if name not in model_config.PURE_SSM_ARCHITECTURES else {}
            with pytest.raises(UsageError):
                Geometry.from_config(config | {"architectures": [name]}, name)

    def test_every_type_with_a_state_is_refused(self, model_config: Any) -> None:
        from sglang.srt.configs import hybrid_arch
        from transformers import PretrainedConfig

        types = {
            kind.model_type
            for kind in vars(hybrid_arch).values()
            if isinstance(kind, type) and issubclass(kind, PretrainedConfig)
        }
        assert len(types) > 15
        # Granite's type is shared with models that have attention only.
        for kind in sorted(types - {"granitemoehybrid"}):
            with pytest.raises(UsageError, match="state-space"):
                Geometry.from_config(GQA | {"model_type": kind}, kind)
