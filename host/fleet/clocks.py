"""Notes on devices' clocks. They may be wrong, so nothing is ordered by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from memleak_android.host.profile.fleet_profile import RecordingRow

_AHEAD_S = 86_400.0  # more than a time zone taken for UTC
_FIRST_S = datetime(2024, 1, 1, tzinfo=UTC).timestamp()  # the format is younger


def judge_clock(row: RecordingRow, now_s: float) -> RecordingRow:
    """Adds a note to a row with an impossible time. The row still counts.

    now_s: by this machine's clock.
    """
    if not row.is_counted or _FIRST_S <= row.taken_at_s <= now_s + _AHEAD_S:
        return row
    shown = datetime.fromtimestamp(row.taken_at_s, UTC)
    side = "is ahead of this machine's" if row.taken_at_s > now_s else "was never set"
    return replace(row, clock=f"its clock said {shown:%Y-%m-%d}, and {side}")


def notes_of_clocks(rows: Sequence[RecordingRow]) -> list[str]:
    wrong = sum(bool(row.clock) for row in rows)
    if not wrong:
        return []
    return [
        f"clocks that disagree: those of {wrong:,} recording{'s' * (wrong > 1)}; nothing is ordered by time"
    ]
