"""The simulated bias of K: what must hold of it, and that it can fail."""

from __future__ import annotations

import pytest
import torch

from hiqcache.codec.registry import get_codec
from hiqcache.lab.quality.bias import PAIRS, SIGMAS, Biased, biased_attention, simulate
from hiqcache.lab.quality.ladder import bias_table


@pytest.fixture(scope="module")
def rows() -> list[Biased]:
    names = ("exact", "k8v8", "k6v4", "int8-compact")
    return list(simulate([get_codec(name) for name in names]))


def at(rows: list[Biased], codec: str, sigma: float, pairs: str = "slow") -> Biased:
    (row,) = (r for r in rows if (r.codec, r.sigma, r.pairs) == (codec, sigma, pairs))
    return row


def test_slow_pairs_hardly_turn_and_fast_ones_do() -> None:
    keys, _ = biased_attention(300.0, PAIRS["slow"])
    assert (keys[:, :, 62] > 250).all()
    keys, _ = biased_attention(300.0, PAIRS["fast"])
    assert (keys[:, :, 0] < -250).any() and (keys[:, :, 0] > 250).any()


def test_exact_keeps_every_bit_up_to_300_sigma(rows: list[Biased]) -> None:
    for row in rows:
        if row.codec == "exact":
            assert (row.divergence, row.inexact_rows) == (0, 0)


def test_the_ladder_stays_where_int8_does_not(rows: list[Biased]) -> None:
    assert at(rows, "k8v8", 100.0).divergence <= 0.0005
    assert at(rows, "k6v4", 100.0).divergence <= 0.003
    assert at(rows, "int8-compact", 100.0).divergence > 100 * at(rows, "k8v8", 100.0).divergence


def test_more_large_channels_than_are_set_aside_show(rows: list[Biased]) -> None:
    few, many = at(rows, "k6v4", 100.0), at(rows, "k6v4", 100.0, "four slow")
    assert many.divergence > 3 * few.divergence


def test_the_table_has_a_line_for_each_codec(rows: list[Biased]) -> None:
    table = bias_table(rows).splitlines()
    assert len(table) == 2 + 4 and len(rows) == 4 * len(PAIRS) * len(SIGMAS)
    assert "`k8v8`" in table[3]
    torch.manual_seed(1)
    again = simulate([get_codec("k8v8")])
    assert next(again).divergence == at(rows, "k8v8", 0.0).divergence
