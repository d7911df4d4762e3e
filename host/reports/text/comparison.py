"""`diff` as text: the answer, what grew, what shrank."""

from collections import Counter
from collections.abc import Iterator
from math import hypot
from typing import TextIO

from memleak_android.host.console import printable
from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.comparison import Change, Comparison, Held, SiteChange
from memleak_android.host.profile.field_types import NO_LEAKS
from memleak_android.host.reports.base import ReportOptions, amount, frame_lines, write_styled
from memleak_android.host.reports.text.units import rate_text, size_text

STYLES = {Change.NEW: "bold red", Change.GROWN: "red", Change.SHRUNK: "green", Change.GONE: "bold green"}


def write(comparison: Comparison, stream: TextIO, options: ReportOptions) -> None:
    """Write options.top changes of each direction (0 = all), then the sums."""
    write_styled(_lines(comparison, options), stream, options.colour)


def signed(space: int, objects: int) -> str:
    """`+4 bytes in +1 allocation`."""
    return f"{space:+,} byte{'s' * (abs(space) != 1)} in {objects:+,} allocation{'s' * (abs(objects) != 1)}"


def _answer(comparison: Comparison) -> tuple[str, str]:
    """`WORSE  grows by 3.0 ± 0.1 MiB/min more, holds 1.2 MiB more: 2 stacks new, 3 grown`. Rates count before sums."""
    changes = [change for change in comparison.changes if change.kind not in NO_LEAKS]
    old, new = comparison.unattributed
    space = sum(change.space for change in changes) + new.space - old.space
    rate, error = _more_growth(comparison)
    worse = rate - error if abs(rate) > error else space
    parts = [f"grows by {rate_text(abs(rate), error)} {_direction(rate)}"] if abs(rate) > error else []
    if space:
        counts = Counter(change.change for change in changes)
        kinds = ", ".join(f"{counts[one]} {one}" for one in Change if counts[one])
        parts.append(f"holds {size_text(abs(space))} {_direction(space)}{f': stacks {kinds}' * bool(kinds)}")
    if not worse:
        return "bold", "SAME  no difference"
    word, style = ("WORSE", Change.NEW) if worse > 0 else ("BETTER", Change.GONE)
    return STYLES[style], f"{word}  {', '.join(parts)}"


def _direction(difference: float) -> str:
    return "more" if difference > 0 else "less"


def _more_growth(comparison: Comparison) -> tuple[float, float]:
    """Bytes per second that the new program grows faster, and half of the 95 % interval; 0 where one was not judged."""
    rates = []
    for profile in (comparison.old, comparison.new):
        if profile.answer is None or profile.growth is None or not profile.growth.is_judged:
            return 0.0, 0.0
        growth = profile.answer.growth if profile.answer.state is AnswerState.LEAKING else None
        rates.append((growth.bytes_per_s, (growth.high - growth.low) / 2) if growth else (0.0, 0.0))
    (was, was_error), (now, now_error) = rates
    return now - was, hypot(was_error, now_error)


def _lines(comparison: Comparison, options: ReportOptions) -> Iterator[tuple[str, str]]:
    yield _answer(comparison)
    yield "", ""
    grown = [change for change in comparison.changes if change.change in (Change.NEW, Change.GROWN)]
    shrunk = [
        change for change in reversed(comparison.changes) if change.change in (Change.SHRUNK, Change.GONE)
    ]
    for changes in (grown, shrunk):
        shown = changes[: options.top] if options.top else changes
        for change in shown:
            yield from _change_lines(change)
        if len(shown) < len(changes):
            yield "", f"… {len(changes) - len(shown)} more (-T 0 shows all)"
        if shown:
            yield "", ""
    yield from (("", line) for line in _sums(comparison))
    yield from (("yellow", f"note: {printable(note)}") for note in comparison.notes)


def _change_lines(change: SiteChange) -> Iterator[tuple[str, str]]:
    error = f" ± {change.stderr_space:,}" if change.stderr_space is not None else ""
    kind = f", {printable(change.kind)}" if change.kind != "user" else ""
    yield STYLES[change.change], f"{change.change:<6} {signed(change.space, change.objects)}{error}{kind}"
    was, now = (amount(held.space, held.objects) for held in (change.old, change.new))
    yield "dim", f"       {was} → {now}, id {change.id}"
    yield from (("", line) for line in frame_lines(change.frames))


def _sums(comparison: Comparison) -> Iterator[str]:
    old, new = comparison.old.totals, comparison.new.totals
    yield _sum(
        "outstanding", Held(old.inuse_space, old.inuse_objects), Held(new.inuse_space, new.inuse_objects)
    )
    if any(held.objects for held in comparison.unattributed):
        yield _sum("unattributed", *comparison.unattributed)
    counts = Counter(change.change for change in comparison.changes)
    kinds = ", ".join(f"{counts[change]} {change}" for change in Change)
    yield f"{'sites':<14} {kinds}, {comparison.unchanged} unchanged"


def _sum(name: str, old: Held, new: Held) -> str:
    difference = signed(new.space - old.space, new.objects - old.objects)
    return f"{name:<14} {amount(old.space, old.objects)} → {amount(new.space, new.objects)} ({difference})"
