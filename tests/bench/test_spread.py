"""The arithmetic of paired rounds."""

import math

import pytest

from bench.spread import Spread, crossing, differences, ratios


def test_spread_is_not_moved_by_one_disturbed_round() -> None:
    assert Spread.of([3.0, 1.0, 1000.0]) == Spread(3.0, 1.0, 1000.0, 3)


def test_ratios_are_taken_by_pair() -> None:
    # A ratio of the sums would be 2.2: the loud second round must not outweigh the first.
    assert ratios([10.0, 100.0], [1.0, 50.0]) == [10.0, 2.0]


def test_an_added_cost_below_the_noise_gives_infinity() -> None:
    assert ratios([5.0, 5.0], differences([10.0, 9.0], [10.0, 9.5])) == [math.inf, math.inf]


@pytest.mark.parametrize(
    ("points", "crossed"),
    [
        ([(1000.0, 1.00), (10_000.0, 1.02), (100_000.0, 1.06)], pytest.approx(32_500.0)),
        ([(1000.0, 1.2), (2000.0, 1.1)], 1000.0),  # the first point exceeds
        ([(1000.0, 1.0), (2000.0, 1.03)], None),
    ],
)
def test_crossing(points: list[tuple[float, float]], crossed: object) -> None:
    assert crossing(points, 1.03) == crossed
