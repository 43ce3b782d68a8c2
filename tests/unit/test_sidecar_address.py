"""Where an engine is: what `--engine` takes and what it refuses, on one line."""

from __future__ import annotations

import pytest

from hiqcache.commands.sidecar import PORT, TIMEOUT
from hiqcache.errors import UsageError
from hiqcache.sidecar.address import Address, parse_address, parse_addresses

URL = "http://127.0.0.1:30000"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (URL, Address(None, URL)),
        (f"{URL}/", Address(None, URL)),
        (f"int8={URL}", Address("int8", URL)),
        (f"int8-compact_2={URL}/base/", Address("int8-compact_2", f"{URL}/base")),
        ("https://engine.example", Address(None, "https://engine.example")),
        ("http://[::1]:30000", Address(None, "http://[::1]:30000")),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    assert parse_address(text) == address


BAD = {
    "empty": "",
    "no scheme": "127.0.0.1:30000",
    "another scheme": "ftp://127.0.0.1",
    "a file": "file:///etc/passwd",
    "no host": "http://",
    "only a port": "http://:30000",
    "a port that is a word": "http://host:port",
    "a port out of range": "http://host:99999",
    "a query": f"{URL}?a=b",
    "a fragment": f"{URL}#a",
    "a space": "http://a b",
    "a line break": "http://host\n.example",
    "not ASCII": "http://b\u00fccher.example",
    "too long": f"http://{'x' * 400}",
    "half of IPv6": "http://[::1",
    "an empty name": f"={URL}",
    "a name in capitals": f"INT8={URL}",
    "a name with a quote": f'a"b={URL}',
    "a long name": f"{'n' * 33}={URL}",
    "a name alone": "int8=",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_address(text)
    assert len(str(error.value)) < 300


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as error:
        parse_address("int8=http://user:hunter2@127.0.0.1")
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "texts", [[URL, URL], [URL, f"int8={URL}"], [f"int8={URL}", f"int8={URL}1"]]
)
def test_several_engines_need_names_of_their_own(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_addresses(texts)


def test_engines_keep_their_order() -> None:
    found = parse_addresses([f"int8={URL}", f"bf16={URL}/b"])
    assert [address.name for address in found] == ["int8", "bf16"]


def test_the_defaults_are_the_documented_ones() -> None:
    assert (PORT, TIMEOUT) == (9464, 3.0)
