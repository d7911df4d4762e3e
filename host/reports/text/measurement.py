"""The last line: how the program was measured, and what the measurement lacks."""

from memleak_android.host.console import printable
from memleak_android.host.profile.coverage import is_complete, what_is_tolerated, what_lacks
from memleak_android.host.profile.profile import Measurement, Profile
from memleak_android.host.reports.base import bounded
from memleak_android.host.reports.units import size_text

TOLERATED_SHOWN_MAX = 3


def measured_line(profile: Profile) -> str:
    """`measured: every allocation (bpf), complete`."""
    target = profile.target
    how = f"one sample per {size_text(target.sample_bytes)}" if target.sample_bytes else "every allocation"
    return f"measured: {how} ({bounded(target.tracer)}), {_state(profile)}"


def _state(profile: Profile) -> str:
    if profile.measurement is Measurement.INCOMPLETE:
        lacks = what_lacks(profile.coverage) or profile.notes[: bool(profile.coverage)]
        if not lacks:
            return "incomplete: it is not known what is missing"
        more = f"; {len(lacks) - 1} more in the notes" if len(lacks) > 1 else ""
        is_answer = profile.answer is not None and profile.answer.why == lacks[0]  # the first line has it
        return f"incomplete{'' if is_answer else f': {printable(lacks[0])}'}{more}"
    if profile.coverage and not is_complete(profile.coverage):
        return f"complete but for: {printable('; '.join(what_is_tolerated(profile.coverage)[:TOLERATED_SHOWN_MAX]))}"
    return "complete"
