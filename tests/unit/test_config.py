"""What is read from the environment, and what the documentation says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hiqcache.config import (
    ALIAS,
    CODEC_CHOICES,
    LEAST_PROGRAMS,
    MOST_PROGRAMS,
    TRANSFER_CHOICES,
    VARIABLES,
    VERIFY_CHOICES,
    Config,
)
from hiqcache.errors import UsageError

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_nothing_set_means_off() -> None:
    assert Config.from_env({"PATH": "/bin"}) == Config(codec=None, transfer="auto")
    assert not Config.from_env({}).enabled


@pytest.mark.parametrize("codec", [c for c in CODEC_CHOICES if c != "off"])
def test_a_codec_turns_it_on(codec: str) -> None:
    config = Config.from_env({"HIQCACHE_CODEC": codec, "HIQCACHE_TRANSFER": "torch"})
    assert config == Config(codec=codec, transfer="torch")
    assert config.enabled


def test_programs_are_a_number() -> None:
    assert Config.from_env({}).programs is None
    assert Config.from_env({"HIQCACHE_PROGRAMS": "48"}).programs == 48


def test_nothing_is_verified_unless_asked() -> None:
    assert Config.from_env({}).verify == "off"
    assert Config.from_env({"HIQCACHE_VERIFY": "sample"}).verify == "sample"


def test_off_is_a_switch_of_its_own() -> None:
    assert not Config.from_env({"HIQCACHE_CODEC": "off"}).enabled


@pytest.mark.parametrize(
    ("environ", "codec"),
    [
        ({ALIAS: "1"}, "int8"),
        ({ALIAS: "1", "HIQCACHE_CODEC": "int8"}, "int8"),
        ({ALIAS: "0"}, None),
        ({ALIAS: "0", "HIQCACHE_CODEC": "int8-compact"}, "int8-compact"),
    ],
)
def test_the_alias_of_the_first_version(environ: dict[str, str], codec: str | None) -> None:
    assert Config.from_env(environ).codec == codec


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HIQCACHE_CODEC": "int9"}, ["HIQCACHE_CODEC", "int9", "int8-compact"]),
        ({"HIQCACHE_CODEC": ""}, ["HIQCACHE_CODEC=''"]),
        ({"HIQCACHE_CODEC": "INT8"}, ["INT8", "int8"]),
        ({"HIQCACHE_TRANSFER": "dma"}, ["HIQCACHE_TRANSFER", "dma", "torch"]),
        ({"HIQCACHE_PROGRAMS": "1"}, ["HIQCACHE_PROGRAMS", "'1'", "2 to 1024"]),
        ({"HIQCACHE_PROGRAMS": "2000"}, ["HIQCACHE_PROGRAMS", "2000", "2 to 1024"]),
        ({"HIQCACHE_PROGRAMS": "many"}, ["HIQCACHE_PROGRAMS", "many", "2 to 1024"]),
        ({"HIQCACHE_VERIFY": "always"}, ["HIQCACHE_VERIFY", "always", "off, sample, full"]),
        ({"HIQCACHE_KODEC": "int8"}, ["HIQCACHE_KODEC", "HIQCACHE_CODEC"]),
        ({ALIAS: "true"}, [ALIAS, "true", "0, 1"]),
        ({ALIAS: "1", "HIQCACHE_CODEC": "bf16"}, [ALIAS, "bf16"]),
        ({ALIAS: "1", "HIQCACHE_CODEC": "off"}, [ALIAS, "off"]),
    ],
)
def test_bad_values_are_named_with_what_is_expected(
    environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        Config.from_env(environ)
    assert all(word in str(refused.value) for word in words)
    assert "\n" not in str(refused.value)


def test_the_page_lists_exactly_the_variables_and_their_values() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"`([^`]+)`", values)) for name, values, _ in rows}
    assert documented.pop("HIQCACHE_CODEC") == set(CODEC_CHOICES)
    assert documented.pop("HIQCACHE_TRANSFER") == set(TRANSFER_CHOICES)
    assert documented.pop(ALIAS) == {"0", "1"}
    assert documented.pop("HIQCACHE_PROGRAMS") == {str(LEAST_PROGRAMS), str(MOST_PROGRAMS)}
    assert documented.pop("HIQCACHE_VERIFY") == set(VERIFY_CHOICES)
    assert not documented
    assert set(VARIABLES) == {name for name, *_ in rows}


def test_the_code_reads_no_other_variable() -> None:
    package = Path(__file__).parents[2] / "hiqcache"
    named = {
        name
        for source in package.rglob("*.py")
        for name in re.findall(r"\bHIQCACHE_[A-Z][A-Z0-9_]*", source.read_text())
    }
    assert named <= set(VARIABLES)
