"""What is read from the environment, and what the documentation says of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hiqcache.config import (
    ALIAS,
    COMPOSE,
    SETTINGS,
    Choice,
    CodecName,
    Config,
    Parts,
    Whole,
    codec_choices,
    passed_over,
)
from hiqcache.errors import UsageError
from tests.kubernetes import service_links

ON = {"HIQCACHE_CODEC": "int8"}
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"


def test_nothing_set_means_off() -> None:
    assert Config.from_env({"PATH": "/bin"}) == Config(codec=None, transfer="auto")
    assert not Config.from_env({}).enabled


@pytest.mark.parametrize("codec", [c for c in codec_choices() if c != "off"])
def test_a_codec_turns_it_on(codec: str) -> None:
    config = Config.from_env({"HIQCACHE_CODEC": codec.upper(), "HIQCACHE_TRANSFER": "torch"})
    assert config == Config(codec=codec, transfer="torch")
    assert config.enabled


def test_programs_are_a_number() -> None:
    assert Config.from_env({}).programs is None
    assert Config.from_env({**ON, "HIQCACHE_PROGRAMS": "48"}).programs == 48


def test_nothing_is_verified_unless_asked() -> None:
    assert Config.from_env({}).verify == "off"
    assert Config.from_env({**ON, "HIQCACHE_VERIFY": "Sample"}).verify == "sample"


def test_off_is_a_switch_of_its_own() -> None:
    assert not Config.from_env({"HIQCACHE_CODEC": "off"}).enabled


@pytest.mark.parametrize(
    "wrong",
    [
        {ALIAS: "1"},
        {ALIAS: "yes"},
        {"HIQCACHE_CODEK": "int8"},
        {"HIQCACHE_VERIFY": "always"},
        {"HIQCACHE_PROGRAMS": "many"},
    ],
)
def test_nothing_stops_a_server_whose_codec_is_off(wrong: dict[str, str]) -> None:
    assert Config.from_env({"HIQCACHE_CODEC": "Off", **wrong}) == Config()


@pytest.mark.parametrize("wrong", [{"HIQCACHE_VERIFY": "always"}, {"HIQCACHE_TRANSFR": "torch"}])
def test_without_a_codec_only_what_may_mean_one_stops_it(wrong: dict[str, str]) -> None:
    assert Config.from_env(wrong) == Config()
    sentence = passed_over(wrong)
    assert sentence is not None and next(iter(wrong)) in sentence


def others() -> dict[str, str]:
    """What Kubernetes sets for the shipped Service, and what `.env.example` names."""
    example = (ROOT / ".env.example").read_text("utf-8")
    named = re.findall(r"^#?(HIQCACHE_\w+)=(.*)$", example, re.MULTILINE)
    return service_links() | {name: value for name, value in named if name not in SETTINGS}


@pytest.mark.parametrize("environ", [{}, ON, {"HIQCACHE_CODEC": "off"}])
def test_other_variables_are_named_once_and_stop_nothing(environ: dict[str, str]) -> None:
    variables = others()
    assert {"HIQCACHE_PORT", "HIQCACHE_PORT_9464_TCP_ADDR", "HIQCACHE_L2_GB"} < set(variables)
    assert Config.from_env(environ | variables) == Config.from_env(environ)
    sentence = passed_over(environ | variables)
    assert sentence is not None and "\n" not in sentence
    assert set(re.findall(r"HIQCACHE_\w+", sentence.partition(";")[0])) == set(variables)
    assert passed_over(environ) is None


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
        ({**ON, "HIQCACHE_TRANSFER": "dma"}, ["HIQCACHE_TRANSFER", "dma", "torch"]),
        (
            {**ON, "HIQCACHE_TRANSFER": "staged"},
            ["HIQCACHE_TRANSFER=staged was removed", "SGLang's copy kernel", "fused or torch"],
        ),
        ({**ON, "HIQCACHE_PROGRAMS": "1"}, ["HIQCACHE_PROGRAMS", "'1'", "2 to 1024"]),
        ({**ON, "HIQCACHE_PROGRAMS": "2000"}, ["HIQCACHE_PROGRAMS", "2000", "2 to 1024"]),
        ({**ON, "HIQCACHE_PROGRAMS": "many"}, ["HIQCACHE_PROGRAMS", "many", "2 to 1024"]),
        ({**ON, "HIQCACHE_VERIFY": "always"}, ["HIQCACHE_VERIFY", "always", "off, sample, full"]),
        ({**ON, "HIQCACHE_PROGRAMS": "9" * 5000}, ["HIQCACHE_PROGRAMS", "2 to 1024"]),
        ({"HIQCACHE_KODEC": "int8"}, ["HIQCACHE_KODEC", "HIQCACHE_CODEC"]),
        ({"HICACHE_CODEC": "int8"}, ["HICACHE_CODEC", "HIQCACHE_CODEC"]),
        ({"hiqcache_codec": "int8"}, ["hiqcache_codec", "HIQCACHE_CODEC"]),
        ({"HIQCACHE_CODE": "off"}, ["HIQCACHE_CODE", "HIQCACHE_CODEC"]),
        ({"SGLANG_EXPERIMENTAL_HICACHE_INT_8": "1"}, ["HICACHE_INT_8", ALIAS]),
        ({**ON, "HIQCACHE_TRANFSER": "torch"}, ["HIQCACHE_TRANFSER", "HIQCACHE_TRANSFER"]),
        ({**ON, "HIQCACHE_VERIFIY": "full"}, ["HIQCACHE_VERIFIY", "HIQCACHE_VERIFY"]),
        ({ALIAS: "true"}, [ALIAS, "true", "0, 1"]),
        ({ALIAS: "1", "HIQCACHE_CODEC": "bf16"}, [ALIAS, "bf16"]),
    ],
)
def test_bad_values_are_named_with_what_is_expected(
    environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as refused:
        Config.from_env(environ)
    assert all(word in str(refused.value) for word in words)
    assert "\n" not in str(refused.value)


def test_the_page_lists_exactly_the_settings_and_their_values() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \|", PAGE.read_text(), re.MULTILINE)
    documented = {name: set(re.findall(r"`([^`]+)`", values)) for name, values in rows}
    expected = {}
    for name, values in SETTINGS.items():
        match values:
            case Choice() | CodecName():
                expected[name] = set(values.words)
            case Whole():
                expected[name] = {str(values.least), str(values.most)}
            case Parts():
                expected[name] = {*values.names, values.example}
    assert set(expected) == set(SETTINGS)
    assert documented == expected


def test_the_code_reads_no_other_variable() -> None:
    package = ROOT / "hiqcache"
    named = {
        name
        for source in package.rglob("*.py")
        for name in re.findall(r"\bHIQCACHE_[A-Z][A-Z0-9_]*", source.read_text())
    }
    assert named <= {*SETTINGS, *COMPOSE}
