"""Devices' clocks, which can be anywhere: what they say is told where it cannot be, and nothing is ordered by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from memleak_android.host.profile.fleet_profile import RecordingRow

_AHEAD_S = 86_400.0  # time zones that were taken for UTC, and more
_FIRST_S = datetime(2024, 1, 1, tzinfo=UTC).timestamp()  # no recording is as old as that: the format is not


def judge_clock(row: RecordingRow, now_s: float) -> RecordingRow:
    """The row with what is wrong with its time. It counts as before. now_s: by this machine's clock."""
    if not row.is_counted or _FIRST_S <= row.taken_at_s <= now_s + _AHEAD_S:
        return row
    said = datetime.fromtimestamp(row.taken_at_s, UTC)
    side = "is ahead of this machine's" if row.taken_at_s > now_s else "was never set"
    return replace(row, clock=f"its clock said {said:%Y-%m-%d}, and {side}")


def notes_of_clocks(rows: Sequence[RecordingRow]) -> list[str]:
    wrong = sum(bool(row.clock) for row in rows)
    if not wrong:
        return []
    return [
        f"clocks that disagree: those of {wrong:,} recording{'s' * (wrong > 1)}; nothing is ordered by time"
    ]
