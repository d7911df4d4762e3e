"""Figures as text."""

import math

from bench.table import losses, number, render, spread


def test_columns_are_aligned() -> None:
    text = render(("", "CPU"), [("floor", "1.5"), ("memleak", "13,000.0")])
    assert text.splitlines() == ["                CPU", "  floor         1.5", "  memleak  13,000.0"]


def test_numbers() -> None:
    assert number(13137.44) == "13,137.4"
    assert number(math.inf) == "∞"
    assert spread([1.0, 2.0, 9.0], 2, "×") == "2.00× (1.00 … 9.00)"


def test_losses_name_their_cause_and_the_worst_round() -> None:
    assert losses([{}, {}]) == "0"
    assert losses([{"ring_full": 3}, {"ring_full": 1200}, {"keys_full": 1}]) == "ring_full 1,200, keys_full 1"
