"""Lines of a text file as it lies around: gzip or not, UTF-8, 16 or 32, or standard input."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from hiqcache.errors import UsageError

STANDARD_INPUT = "-"
GZIP = b"\x1f\x8b"
OTHER_FORMATS = {
    b"\x28\xb5\x2f\xfd": "zstd: decompress it first (zstd -dc FILE | hiqcache simulate - ...)",
    b"BZh": "bzip2: decompress it first (bzip2 -dc FILE | hiqcache simulate - ...)",
    b"\xfd7zXZ": "xz: decompress it first (xz -dc FILE | hiqcache simulate - ...)",
    b"PK\x03\x04": "a zip archive: name the file in it",
    b"PAR1": "Parquet: write it as JSON lines",
}


def read_lines(path: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that is not blank.

    Parameters
    ----------
    path
        A file, or `-` for standard input.

    Raises
    ------
    UsageError
        No such file, not readable, compressed some other way or damaged, or no text.
    """
    number = 0
    try:
        with _open(path) as raw:
            encoding = json.detect_encoding(raw.peek(4)[:4])
            for number, line in enumerate(io.TextIOWrapper(raw, encoding), 1):
                if line.strip():
                    yield number, line
    except UnicodeError as error:
        raise UsageError(f"{path} line {number + 1} is not text: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path} is damaged or cut off after line {number}: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:  # a NUL character in the path
        raise UsageError(f"cannot read {path!r}: {error}") from None


def _open(path: str) -> io.BufferedReader:
    # The caller closes it.
    raw = sys.stdin.buffer if path == STANDARD_INPUT else open(path, "rb", 0)  # noqa: SIM115
    file = _buffered(raw)
    start = file.peek(8)
    for magic, advice in OTHER_FORMATS.items():
        if start.startswith(magic):
            raise UsageError(f"{path} is {advice}")
    if start.startswith(GZIP):
        return _buffered(gzip.GzipFile(fileobj=cast(BinaryIO, file)))
    return file


def _buffered(raw: Any) -> io.BufferedReader:
    return io.BufferedReader(raw)
