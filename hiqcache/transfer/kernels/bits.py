# mypy: ignore-errors
"""Floats and their bits in Triton, the same on every GPU and in the interpreter; for the codecs.

Integer arithmetic decides BF16's bits. FP16 uses the GPU's own conversions, which keep subnormals
and round to nearest even.
"""

import triton
import triton.language as tl

MAGNITUDE = tl.constexpr(0x7FFF)
INFINITY = tl.constexpr(0x7F80)
NAN = tl.constexpr(0x7FC0)
HALF_LARGEST = tl.constexpr(65504.0)
HALF_INFINITY = tl.constexpr(0x7C00)
HALF_NAN = tl.constexpr(0x7E00)


@triton.jit
def float_of(bits):
    """The float32 of BF16 bits in an int32."""
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def bf16_bits(value):
    """A finite float32 rounded to BF16, nearest even: its 16 bits in an int32."""
    bits = value.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


@triton.jit
def float_of_half(bits):
    """The float32 of FP16 bits in an int32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def half_bits(value):
    """A finite float32 rounded to FP16, at most the largest finite: its 16 bits in an int32."""
    value = tl.minimum(tl.maximum(value, -HALF_LARGEST), HALF_LARGEST)
    return value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
