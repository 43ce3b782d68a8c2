"""The line through the soak's samples of memory."""

from __future__ import annotations

import random

import pytest

from tests.engine.soak.trend import trend


def test_a_line_is_found_without_an_error() -> None:
    minutes = [0.0, 1.0, 2.5, 7.0]
    found = trend(minutes, [100 + 3 * m for m in minutes])
    assert found.slope == pytest.approx(3)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.samples == 4


def test_the_error_covers_noise_about_as_often_as_it_says() -> None:
    draw = random.Random(0)
    minutes = [index / 30 for index in range(300)]
    misses = 0
    for _ in range(200):
        found = trend(minutes, [2 * m + draw.gauss(0, 50) for m in minutes])
        misses += abs(found.slope - 2) > 2 * found.error
    assert 2 <= misses <= 20, "two standard errors miss one time in twenty"
