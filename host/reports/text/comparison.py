"""`diff` as text: the answer, what grew, what shrank."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO, TypeVar

from memleak_android.host.console import printable
from memleak_android.host.profile.changes import (
    Change,
    Difference,
    Held,
    Outcome,
    PlaceChange,
    Rate,
    SiteChange,
)
from memleak_android.host.profile.comparison import Comparison
from memleak_android.host.profile.field_types import BYTE, NO_LEAKS
from memleak_android.host.profile.short_names import short_name
from memleak_android.host.reports.base import ReportOptions, amount, write_styled
from memleak_android.host.reports.text.by_place import where
from memleak_android.host.reports.text.stack import stack_lines
from memleak_android.host.reports.units import count_text, rate_text, size_text

STYLES = {Change.NEW: "bold red", Change.GROWN: "red", Change.SHRUNK: "green", Change.GONE: "bold green"}
OUTCOME_STYLES = {Outcome.WORSE: "bold red", Outcome.BETTER: "bold green", Outcome.SAME: "bold"}
T = TypeVar("T", PlaceChange, SiteChange)


def write(comparison: Comparison, stream: TextIO, options: ReportOptions) -> None:
    """Write options.top changes of each direction (0 = all), then the sums."""
    write_styled(_lines(comparison, options), stream, options.colour)


def signed(space: int, objects: int, unit: str = BYTE) -> str:
    """`+4 bytes in +1 allocation`, `+12 descriptors`."""
    held, blocks = (
        f"{'+' * (n >= 0)}{count_text(n, noun)}" for n, noun in ((space, unit), (objects, "allocation"))
    )
    return f"{held} in {blocks}" if unit == BYTE else held


def difference_line(comparison: Comparison) -> str:
    """`WORSE  grows by 3.0 ± 0.1 MiB/min more, holds 1.2 MiB more: places 2 new, 3 grown`."""
    difference = comparison.difference
    if difference.is_same_leak:
        return f"SAME  as before: both leak, {_both(difference)}"
    if difference.outcome is Outcome.SAME:
        return "SAME  no difference"
    parts = []
    if difference.growth and difference.growth.is_significant:
        parts.append(f"grows by {_faster(difference.growth, difference.unit)}")
    if difference.new_growth:
        parts.append(_both(difference))
    elif difference.space:
        held = f"holds {size_text(abs(difference.space), difference.unit)} {_direction(difference.space)}"
        counts = Counter(change.change for change in _of_user(comparison))
        kinds = ", ".join(f"{counts[one]} {one}" for one in Change if counts[one])
        what = "places" if comparison.places else "stacks"
        parts.append(f"{held}: {what} {kinds}" if kinds else held)
    return f"{difference.outcome.upper()}  {', '.join(parts)}"


def _both(difference: Difference) -> str:
    """`9.0 ± 0.1 MiB/min before and 12.1 ± 0.1 MiB/min now`."""
    rates = [rate for rate in (difference.old_growth, difference.new_growth) if rate is not None]
    texts = [rate_text(rate.bytes_per_s, rate.margin, unit=difference.unit) for rate in rates]
    return f"{texts[0]} before and {texts[1]} now" if texts[0] != texts[1] else texts[0]


def _of_user(comparison: Comparison) -> list[PlaceChange] | list[SiteChange]:
    if comparison.places:
        return [change for change in comparison.places if change.place.kind not in NO_LEAKS]
    return [change for change in comparison.changes if change.kind not in NO_LEAKS]


def _faster(rate: Rate, unit: str) -> str:
    return f"{rate_text(abs(rate.bytes_per_s), rate.margin, unit=unit)} {_direction(rate.bytes_per_s)}"


def _direction(difference: float) -> str:
    return "more" if difference > 0 else "less"


def _lines(comparison: Comparison, options: ReportOptions) -> Iterator[tuple[str, str]]:
    yield OUTCOME_STYLES[comparison.difference.outcome], difference_line(comparison)
    yield "", ""
    if comparison.places:
        yield from _by_direction(comparison.places, _place_lines, options)
    if options.verbose or not comparison.places:
        yield from _by_direction(comparison.changes, _change_lines, options)
    yield from (("", line) for line in _sums(comparison))
    yield from (("yellow", f"note: {printable(note)}") for note in comparison.notes)
    if comparison.places and comparison.changes and not options.verbose:
        yield "", "next: -v shows the stacks, -o x.html a page"


def _by_direction(
    changes: Sequence[T],
    lines: Callable[[T, ReportOptions], Iterable[tuple[str, str]]],
    options: ReportOptions,
) -> Iterator[tuple[str, str]]:
    """What grew, then what shrank, the most first."""
    grown = [change for change in changes if change.change in (Change.NEW, Change.GROWN)]
    shrunk = [change for change in reversed(changes) if change.change in (Change.SHRUNK, Change.GONE)]
    for those in (grown, shrunk):
        shown = those[: options.top] if options.top else those
        for change in shown:
            yield from lines(change, options)
        if len(shown) < len(those):
            yield "", f"… {len(those) - len(shown)} more (-T 0 shows all)"
        if shown:
            yield "", ""


def _place_lines(change: PlaceChange, options: ReportOptions) -> Iterator[tuple[str, str]]:
    rate = (
        f", grows by {_faster(change.growth, change.unit)}"
        if change.growth and change.growth.is_significant
        else ""
    )
    yield STYLES[change.change], f"{_head(change)}{rate}"
    former = f", was {printable(short_name(change.former))}" if change.former else ""
    yield "", f"       {where(change.place, None, options)}{former}"
    yield "dim", f"       {_held(change)}, {change.stacks:,} stack{'s' * (change.stacks != 1)}"


def _change_lines(change: SiteChange, options: ReportOptions) -> Iterator[tuple[str, str]]:
    kind = f", {printable(change.kind)}" if change.kind != "user" else ""
    yield STYLES[change.change], f"{_head(change)}{kind}"
    yield "dim", f"       {_held(change)}, id {change.id}"
    yield from (("", line) for line in stack_lines(change.frames, options))


def _head(change: PlaceChange | SiteChange) -> str:
    error = f" ± {change.stderr_space:,}" if change.stderr_space is not None else ""
    return f"{change.change:<6} {signed(change.space, change.objects, change.unit)}{error}"


def _held(change: PlaceChange | SiteChange) -> str:
    return " → ".join(amount(held.space, held.objects, change.unit) for held in (change.old, change.new))


def _sums(comparison: Comparison) -> Iterator[str]:
    old, new = comparison.old.totals, comparison.new.totals
    unit = comparison.difference.unit
    before, after = (Held(one.inuse_space, one.inuse_objects) for one in (old, new))
    yield _sum("outstanding", before, after, unit)
    if any(held.objects for held in comparison.unattributed):
        yield _sum("unattributed", *comparison.unattributed, unit)
    counts = Counter(change.change for change in comparison.changes)
    kinds = ", ".join(f"{counts[change]} {change}" for change in Change)
    yield f"{'sites':<14} {kinds}, {comparison.unchanged} unchanged"


def _sum(name: str, old: Held, new: Held, unit: str) -> str:
    difference = signed(new.space - old.space, new.objects - old.objects, unit)
    before, after = (amount(held.space, held.objects, unit) for held in (old, new))
    return f"{name:<14} {before} → {after} ({difference})"
