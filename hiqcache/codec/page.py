"""A page as L3 stores it: a header of 16 bytes, then the page's records as they lie in L2.

Arithmetic on buffers alone, so that a stored page can be looked at without torch or SGLang.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import StrEnum

HEADER = struct.Struct("<4sIII")
HEADER_BYTES = HEADER.size
MAGIC = b"HiQ3"
PAGE_VERSION = 1
"""Raised when the header or the checksum come to mean something else."""


class Fault(StrEnum):
    """Why a page that was read must not be used."""

    FOREIGN = "foreign"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class PageFormat:
    """What every page of one pool has in common.

    For SmolLM2-135M under `int8` at page size 16: 16 tokens x 15,360 bytes = 245,760 bytes of
    records, so a page of 245,776 bytes: at 0 the magic, at 4 a CRC-32 of the page version, the
    tag and the size, at 8 the bytes of records, at 12 a CRC-32 of all of that, the page's key
    and its records.

    Parameters
    ----------
    tag
        Names codec, record version, geometry and layout: see `EncodedHostPool`.
    record_bytes
        Bytes of records in one page.
    """

    tag: str
    record_bytes: int

    @property
    def page_bytes(self) -> int:
        return HEADER_BYTES + self.record_bytes

    def seal(self, page: memoryview, key: str) -> None:
        """Write the header of a page that is to be stored under `key`."""
        self.write_header(page, page[HEADER_BYTES:], key)

    def write_header(self, header: memoryview, records: memoryview, key: str) -> None:
        """As `seal`, of a page whose header and records lie apart."""
        HEADER.pack_into(header, 0, *self._header(records, key))

    def fault(self, page: memoryview, key: str) -> Fault | None:
        """What is wrong with a page that was stored under `key`; None if nothing is.

        Any flipped bit of a page is found, and any burst of up to 32 bits. Of other damage, and
        of pages stored under another key, one in 2^32 is not.
        """
        if page.nbytes != self.page_bytes:
            return Fault.UNREADABLE
        return self.fault_apart(page[:HEADER_BYTES], page[HEADER_BYTES:], key)

    def fault_apart(self, header: memoryview, records: memoryview, key: str) -> Fault | None:
        """As `fault`, of a page whose header and records lie apart."""
        magic, form, size, checksum = HEADER.unpack_from(header)
        expected = self._header(records, key)
        if (magic, form, size) != expected[:3]:
            return Fault.FOREIGN
        return None if checksum == expected[3] else Fault.DAMAGED

    def _header(self, records: memoryview, key: str) -> tuple[bytes, int, int, int]:
        form = zlib.crc32(f"{PAGE_VERSION} {self.tag} {self.record_bytes}".encode())
        head = HEADER.pack(MAGIC, form, self.record_bytes, 0)
        checksum = zlib.crc32(records, zlib.crc32(head + key.encode()))
        return MAGIC, form, self.record_bytes, checksum
