"""A stored page: what its header says, and that nothing but the page itself passes."""

from __future__ import annotations

import random

import pytest

from hiqcache.codec.page import HEADER_BYTES, Fault, PageFormat

FORMAT = PageFormat("hiqcache-int8-r1-bfloat16-2x3x64.64-p1-page_first", 192)
KEY = "5f0c" * 16


def sealed(form: PageFormat = FORMAT, key: str = KEY) -> bytearray:
    page = bytearray(HEADER_BYTES) + random.Random(1).randbytes(form.record_bytes)
    form.seal(memoryview(page), key)
    return page


def fault(page: bytearray, form: PageFormat = FORMAT, key: str = KEY) -> Fault | None:
    return form.fault(memoryview(page), key)


def test_a_header_takes_16_bytes_and_leaves_the_records_alone() -> None:
    page = sealed()
    assert len(page) == FORMAT.page_bytes == 192 + 16
    assert page[HEADER_BYTES:] == random.Random(1).randbytes(192)
    assert page[:4] == b"HiQ3"
    assert int.from_bytes(page[8:12], "little") == 192


def test_what_was_sealed_passes() -> None:
    assert fault(sealed()) is None


def test_every_flipped_bit_is_found() -> None:
    page = sealed()
    for bit in range(8 * len(page)):
        page[bit // 8] ^= 1 << bit % 8
        assert fault(page) is not None, f"bit {bit}"
        page[bit // 8] ^= 1 << bit % 8
    assert fault(page) is None


@pytest.mark.parametrize(
    ("form", "key", "expected"),
    [
        (FORMAT, "00" * 32, Fault.DAMAGED),
        (PageFormat(FORMAT.tag.replace("r1", "r2"), 192), KEY, Fault.FOREIGN),
        (PageFormat(FORMAT.tag.replace("page_first", "layer_first"), 192), KEY, Fault.FOREIGN),
        (PageFormat(FORMAT.tag, 176), KEY, Fault.UNREADABLE),
        (PageFormat(FORMAT.tag, 208), KEY, Fault.UNREADABLE),
    ],
)
def test_a_page_is_good_under_its_own_key_and_format_alone(
    form: PageFormat, key: str, expected: Fault
) -> None:
    assert fault(sealed(), form, key) is expected


def test_bytes_that_hiqcache_never_wrote_are_foreign() -> None:
    for page in (bytearray(208), bytearray(random.Random(2).randbytes(208))):
        assert fault(page) is Fault.FOREIGN


def test_records_cut_off_and_filled_with_zeros_are_damaged() -> None:
    page = sealed()
    page[100:] = bytes(len(page) - 100)
    assert fault(page) is Fault.DAMAGED
