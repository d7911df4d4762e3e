"""Values with units: what is taken, and what it is worth."""

import click
import pytest

from memleak_android.host.commands.values import DURATION, SIZE, Value

S = 10**9


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (DURATION, "2", 2 * S),
        (DURATION, "0.5", S // 2),
        (DURATION, "2sec", 2 * S),
        (DURATION, "5min", 300 * S),
        (DURATION, "1h30m", 5400 * S),
        (DURATION, "1m1s500ms", 61 * S + S // 2),
        (DURATION, "1m30", None),
        (DURATION, "1.2.3", None),
        (DURATION, "", None),
        (SIZE, "1.5K", 1536),
        (SIZE, "0.5 MiB", 2**19),
        (SIZE, "18446744073709551615", 2**64 - 1),
        (SIZE, "18446744073709551616", None),
        (SIZE, ".K", None),
    ],
)
def test_values(kind: Value, text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    else:
        assert kind.convert(text, None, None) == value
