"""Models with more pools than one, read from config.json: windows, and attention beside state.

For `hiqcache capacity`. `geometry` reads what every layer of a plain model keeps; here layers of
several kinds are told apart as SGLang 0.5.23 does (`get_hybrid_layer_ids`, `mamba2_cache_params`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hiqcache.budget import KV, STATE, SWA, TOKENS_PER_STATE, Pool, shares, slots
from hiqcache.codec.catalog import codec_entry
from hiqcache.errors import UsageError
from hiqcache.geometry import Geometry, load_config, text_config
from hiqcache.model_config import HEADS, HIDDEN, LAYERS, Figures
from hiqcache.unsupported_models import WINDOW_POOL, architectures

CONV_BYTES = 2
"""Convolution windows are BF16 unless `SGLANG_MAMBA_CONV_DTYPE` says otherwise."""
SSM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""States are FP32 unless the config's `mamba_ssm_dtype` says otherwise."""
ATTENTION = ("full_attention", "attention")
PATTERNS = {"GptOssForCausalLM": 2, "Llama4ForConditionalGeneration": 4}
"""Every how many layers one is of full attention, where `layer_types` is left out."""


@dataclass(frozen=True)
class State:
    """What the layers without KV keep of a sequence, whole model.

    Qwen3-Next-80B: 36 layers, 32 heads of 128 x 128 in FP32 and windows of 8,192 x 3 in BF16:
    `State(36, 524_288, 4, 24_576)`, 77,266,944 bytes.

    Parameters
    ----------
    layers
        That have a state.
    values, value_bytes
        Of one layer's recurrent state.
    conv_values
        Of one layer's convolution windows.
    """

    layers: int
    values: int
    value_bytes: int
    conv_values: int

    def bytes(self, tp: int = 1) -> int:
        """Of one state on one of `tp` ranks."""
        values, conv = (-(-count // tp) for count in (self.values, self.conv_values))
        return self.layers * (values * self.value_bytes + conv * CONV_BYTES)


@dataclass(frozen=True)
class PoolCapacity:
    """A pool of an L2: its slots, and bytes of one and of all."""

    name: str
    slots: int
    slot_bytes: int

    @property
    def bytes(self) -> int:
        return self.slots * self.slot_bytes


@dataclass(frozen=True)
class StackGeometry:
    """The pools that SGLang builds for a model.

    Parameters
    ----------
    kv
        Layers of full attention.
    windows
        Layers in a pool of their own for sliding windows, if there are any.
    state
        Layers with recurrent state, if there are any.
    """

    kv: Geometry
    windows: Geometry | None = None
    state: State | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str) -> StackGeometry:
        """Read a parsed config.json of any model that HiQCache serves.

        Raises
        ------
        UsageError
            A key is missing or wrong, or nothing here can tell the model's layers apart.
        """
        text = text_config(config)
        kind = str(text.get("model_type"))
        reader = READERS.get(kind)
        if reader is not None:
            read = Figures(text, name)
            layers, state = reader(read)
            return cls(kv=_rows(read, layers, nested=text is not config), state=state)
        names = WINDOW_POOL.intersection([*architectures(config), *architectures(text)])
        read = Figures(text, name)
        kinds = text.get("layer_types") or _pattern(read, names)
        if names and isinstance(kinds, list):
            full = _rows(read, sum(one in ATTENTION for one in kinds), nested=text is not config)
            windows = sum(one == "sliding_attention" for one in kinds)
            return cls(kv=full, windows=replace(full, layers=windows) if windows else None)
        return cls(kv=Geometry.from_config(config, name))

    @classmethod
    def load(cls, source: str) -> StackGeometry:
        """Load by a shipped name or a path, as `Geometry.load`."""
        config, name, _ = load_config(source)
        return cls.from_config(config, name)

    def pools(
        self,
        codec: str,
        *,
        tp: int = 1,
        device_slots: tuple[int, int] = (10, 8),
        packed_drafts: int = 0,
        draft: Geometry | None = None,
    ) -> list[Pool]:
        """The pools of one rank, as `budget.shares` takes them.

        Parameters
        ----------
        device_slots
            The device's tokens of `kv` and of `swa`. Unless given in SGLang's default ratio, 0.8
            (`--swa-full-tokens-ratio`).
        packed_drafts
            Layers of an MTP draft, in the pool of the model's own.
        draft
            A separate draft model, whose rows have a slot for each of `kv`.
        """
        rows = replace(self.kv, layers=self.kv.layers + packed_drafts)
        rider = 0 if draft is None else _bytes_per_token(draft, codec, tp)
        found = [Pool(KV, _bytes_per_token(rows, codec, tp), rider)]
        if self.windows is not None:
            size = _bytes_per_token(self.windows, codec, tp)
            found[0] = replace(found[0], device_slots=device_slots[0])
            found.append(Pool(SWA, size, device_slots=device_slots[1]))
        if self.state is not None:
            found.append(Pool(STATE, self.state.bytes(tp)))
        return found

    def capacity(
        self,
        codec: str,
        gigabytes: float,
        *,
        page_size: int = 1,
        tokens_per_state: int = TOKENS_PER_STATE,
        split: Mapping[str, float] | None = None,
        **options: Any,
    ) -> dict[str, PoolCapacity]:
        """Slots of each pool under `--hicache-size`; `options` are those of `pools`."""
        pools = self.pools(codec, **options)
        parts = shares(gigabytes, pools, tokens_per_state=tokens_per_state, split=split)
        return {
            pool.name: PoolCapacity(
                pool.name,
                slots(parts[pool.name], pool.slot_bytes, 1 if pool.name == STATE else page_size),
                pool.slot_bytes,
            )
            for pool in pools
        }


def _bytes_per_token(rows: Geometry, codec: str, tp: int) -> int:
    entry, heads = codec_entry(codec), rows.local_heads(tp)
    k = entry.layout("k", heads, rows.head_dim).record_bytes
    v = entry.layout("v", heads, rows.v_head_dim).record_bytes
    return rows.layers * (k + v)


def _rows(read: Figures, layers: int, *, nested: bool) -> Geometry:
    if layers < 1:
        raise UsageError(f"{read.name}: no layer of full attention, so nothing to encode")
    heads = read.need(HEADS)
    head_dim = read.optional(("head_dim", "attention_head_dim"))
    if head_dim is None:
        head_dim = read.head_dim(heads)
    kv_heads = read.kv_heads(heads, nested=nested)
    return Geometry(read.name, layers, kv_heads, head_dim, head_dim, heads, notes=tuple(read.notes))


def _pattern(read: Figures, names: frozenset[str]) -> list[str] | None:
    """The kind of each layer where an architecture has it in its code."""
    every = next((PATTERNS[name] for name in names if name in PATTERNS), None)
    if every is None:
        return None
    layers = range(1, read.need(LAYERS) + 1)
    return ["sliding_attention" if layer % every else "full_attention" for layer in layers]


def _value_bytes(read: Figures) -> int:
    return SSM_BYTES.get(str(read.config.get("mamba_ssm_dtype") or "float32"), 4)


def _kinds(read: Figures) -> list[str]:
    """The kind of each layer, from `layer_types` or from an interval."""
    kinds = read.config.get("layer_types") or read.config.get("layers_block_type")
    if isinstance(kinds, list):
        return [str(kind) for kind in kinds]
    layers = read.need(("num_hidden_layers",))
    interval = read.need(("full_attention_interval",))
    return [
        "full_attention" if (layer + 1) % interval == 0 else "linear_attention"
        for layer in range(layers)
    ]


def _split_layers(read: Figures) -> tuple[int, int]:
    kinds = _kinds(read)
    attention = sum(kind in ATTENTION for kind in kinds)
    return attention, len(kinds) - attention


def _mamba2(heads: int, head_dim: int, state: int, groups: int, kernel: int) -> tuple[int, int]:
    """Values of a layer's state and of its windows (`Mamba2StateShape.create`)."""
    return heads * head_dim * state, (heads * head_dim + 2 * groups * state) * (kernel - 1)


def _gated_delta(read: Figures) -> tuple[int, State]:
    layers, others = _split_layers(read)
    values, conv = _mamba2(
        read.need(("linear_num_value_heads",)),
        read.need(("linear_value_head_dim",)),
        read.need(("linear_key_head_dim",)),
        read.need(("linear_num_key_heads",)),
        read.need(("linear_conv_kernel_dim",)),
    )
    return layers, State(others, values, _value_bytes(read), conv)


def _granite(read: Figures) -> tuple[int, State]:
    layers, others = _split_layers(read)
    return layers, _mamba_keys(read, others)


def _falcon_h1(read: Figures) -> tuple[int, State]:
    """Attention and Mamba2 side by side in every layer."""
    layers = read.need(("num_hidden_layers",))
    return layers, _mamba_keys(read, layers)


def _mamba_keys(read: Figures, layers: int) -> State:
    values, conv = _mamba2(
        read.need(("mamba_n_heads",)),
        read.need(("mamba_d_head",)),
        read.need(("mamba_d_state",)),
        read.need(("mamba_n_groups",)),
        read.need(("mamba_d_conv",)),
    )
    return State(layers, values, _value_bytes(read), conv)


def _nemotron_h(read: Figures) -> tuple[int, State]:
    pattern = read.config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        raise UsageError(f"{read.name}: the config has no hybrid_override_pattern")
    values, conv = _mamba2(
        read.need(("mamba_num_heads",)),
        read.need(("mamba_head_dim",)),
        read.need(("ssm_state_size",)),
        read.need(("n_groups",)),
        read.need(("conv_kernel",)),
    )
    state = State(pattern.count("M"), values, _value_bytes(read), conv)
    return pattern.count("*"), state


def _lfm2(read: Figures) -> tuple[int, State]:
    """Short convolutions: windows and no state."""
    layers, others = _split_layers(read)
    conv = read.need(HIDDEN) * (read.need(("conv_L_cache",)) - 1)
    return layers, State(others, 0, 4, conv)


READERS = {
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "nemotron_h": _nemotron_h,
    "qwen3_5": _gated_delta,
    "qwen3_5_moe": _gated_delta,
    "qwen3_5_moe_text": _gated_delta,
    "qwen3_5_text": _gated_delta,
    "qwen3_next": _gated_delta,
}
"""Hybrids by model type: how many layers of attention, and what the others keep."""
