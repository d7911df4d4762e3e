"""How often a session asks for snapshots on its own."""

import pytest

from memleak_android.host.analysis.growth_trend import INSTANTS_MIN
from memleak_android.host.session.session import safety_interval_ns

SECOND = 10**9


def instants(seconds: int, snapshot_bytes: int) -> list[float]:
    at_ns, found = 0, []
    while (at_ns := at_ns + safety_interval_ns(at_ns, snapshot_bytes)) < seconds * SECOND:
        found.append(at_ns / SECOND)
    return found


@pytest.mark.parametrize("snapshot_bytes", [0, 7 << 20, 4 << 30])
def test_eight_seconds_are_judged(snapshot_bytes: int) -> None:
    assert len(instants(8, snapshot_bytes)) > INSTANTS_MIN


def test_large_tables_are_sent_less_often() -> None:
    assert len(instants(600, 1 << 30)) < len(instants(600, 0)) / 2
    assert (
        max(b - a for a, b in zip((0.0, *instants(3600, 1 << 40)), instants(3600, 1 << 40), strict=False))
        <= 30
    )
