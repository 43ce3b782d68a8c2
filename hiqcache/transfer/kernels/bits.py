# mypy: ignore-errors
"""Floats and their bits in Triton, the same on every GPU and in the interpreter; for the codecs.

Integer arithmetic decides the bits of BF16 and fp8. FP16 uses the GPU's own conversions, which keep
subnormals and round to nearest even.
"""

import triton
import triton.language as tl

MAGNITUDE = tl.constexpr(0x7FFF)
INFINITY = tl.constexpr(0x7F80)
NAN = tl.constexpr(0x7FC0)
HALF_LARGEST = tl.constexpr(65504.0)
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


@triton.jit
def power_of_two(exponent):
    """2^exponent as float32; exponents of normal numbers in an int32."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def to_float(bits, s: tl.constexpr):
    """The float32 of a row's value, whose bits are in an int32, extended by the sign or not."""
    if s.row == "bfloat16":
        return float_of(bits)
    elif s.row == "float16":
        return float_of_half(bits)
    else:
        # Fraction and exponent where float32 has them, then the difference of the biases.
        CUT: tl.constexpr = 20 if s.row == "float8_e4m3fn" else 21
        BIASES: tl.constexpr = 2.0**120 if s.row == "float8_e4m3fn" else 2.0**112
        magnitude = ((bits & 0x7F) << CUT).to(tl.float32, bitcast=True) * BIASES
        return tl.where((bits & 0x80) != 0, -magnitude, magnitude)


@triton.jit
def from_float(value, s: tl.constexpr):
    """A finite float32 rounded to the row's type, at most its largest: its bits in an int32."""
    value = tl.minimum(tl.maximum(value, -s.largest), s.largest)
    if s.row == "bfloat16":
        return bf16_bits(value)
    elif s.row == "float16":
        return value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    else:
        CUT: tl.constexpr = 20 if s.row == "float8_e4m3fn" else 21
        BIASES: tl.constexpr = 120 << 3 if s.row == "float8_e4m3fn" else 112 << 2
        STEPS: tl.constexpr = 2.0**9 if s.row == "float8_e4m3fn" else 2.0**16
        NORMAL: tl.constexpr = 2.0**-6 if s.row == "float8_e4m3fn" else 2.0**-14
        magnitude = tl.abs(value)
        bits = magnitude.to(tl.int32, bitcast=True)
        normal = ((bits + ((1 << (CUT - 1)) - 1) + ((bits >> CUT) & 1)) >> CUT) - BIASES
        # Adding 1.5 x 2^23 rounds to steps of a subnormal number and leaves their count.
        subnormal = (magnitude * STEPS + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
        bits = tl.where(magnitude < NORMAL, subnormal, normal)
        return bits | tl.where(value < 0, 0x80, 0)
