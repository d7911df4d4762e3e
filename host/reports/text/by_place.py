"""The first screen: the answer, the places by growth or by size, what the measurement lacks, and what to run next."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from textwrap import wrap

from memleak_android.host.console import printable
from memleak_android.host.profile.answer import Answer, AnswerState, Package, Place
from memleak_android.host.profile.answering import counted_places, growing_places, slow_places
from memleak_android.host.profile.coverage import what_is_tolerated, what_lacks
from memleak_android.host.profile.culprit import called_function, own_callers, responsible_frame
from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.profile.growth import LEAKED
from memleak_android.host.profile.profile import CallSite, LeakKind, Profile, SymbolClass
from memleak_android.host.profile.runtime_sites import (
    JIT_FRAMES,
    SCRIPT_FRAMES,
    code_label,
    is_generated,
    module_name,
)
from memleak_android.host.profile.short_names import short_name
from memleak_android.host.profile.sort_orders import growth_rate
from memleak_android.host.reports.base import ReportOptions, relative_source
from memleak_android.host.reports.text import messages
from memleak_android.host.reports.text.answer import (
    STYLES,
    TOLERATED_SHOWN_MAX,
    answer_line,
    exit_text,
    limit_text,
    measured_line,
    rates_of,
    sums_text,
)
from memleak_android.host.reports.text.gate import gate_text
from memleak_android.host.reports.text.memory import untouched_notes
from memleak_android.host.reports.text.messages import way_out
from memleak_android.host.reports.text.processes import process_lines
from memleak_android.host.reports.units import count_text, rate_text, size_text
from memleak_android.unwind.file_reading import file_status, open_regular

WIDTH = 118  # columns
DETAILED = 5  # places with their source line and their callers
NOTES_MAX = 3
PROCESSES_MAX = 5
LINES_MAX = 2  # of a note, of a reason
NAME_MAX = 60
CALLED_MAX = 40
CALLERS_MAX = 6
_FILE_MAX = 40
_FILE_MIN = 12
_NAME_AND_FILE_MAX = 70  # so that the line's number stays on the screen
_LEAK_WORDS = {
    LeakKind.STILL_REACHABLE: "still referenced",
    LeakKind.POSSIBLY_LOST: "maybe lost",
    LeakKind.INDIRECTLY_LOST: "lost",
    LeakKind.DEFINITELY_LOST: "lost",
}
_OF_RUNTIME = "runtime"


def lines(profile: Profile, answer: Answer, options: ReportOptions) -> Iterator[tuple[str, str]]:
    """(style, line), at most about 40."""
    yield STYLES[answer.state], answer_line(profile, answer)
    if until := limit_text(profile, answer):
        yield STYLES[answer.state], _cut(f"         {until}")
    shown, others = _chosen(profile, answer, options)
    if shown or profile.unowned:
        yield "", ""
        yield from _table(profile, answer, shown, options)
    if profile.processes:
        yield "", ""
        yield "bold", f"by process: {len(profile.processes):,} hold something"
        few = replace(options, top=min(options.top, PROCESSES_MAX))
        yield from (("", _cut(line)) for line in process_lines(profile, few))
    if rest := [*_rest_lines(profile, others, options)]:
        yield "", ""
        yield from (("dim", line) for line in rest)
    yield "", ""
    if profile.gate is not None:
        yield "", f"gate: {gate_text(profile.gate)}"
    yield from _notes(profile)
    if missing := _missing_lines(profile, shown):
        yield from (("", line) for line in wrap(missing, WIDTH, subsequent_indent="  ")[:LINES_MAX])
    status = profile.target.exit_status
    measured = measured_line(profile) + (f"; the program {exit_text(status)}" if status is not None else "")
    yield from (("dim", line) for line in wrap(measured, WIDTH, subsequent_indent="  ")[:LINES_MAX])
    yield "", f"next: {_next_step(profile, answer)}"


def _chosen(profile: Profile, answer: Answer, options: ReportOptions) -> tuple[list[Place], list[Place]]:
    """The places that are listed, in order, and those that are summed up in one line."""
    places = counted_places(profile)
    if answer.growing:
        listed = growing_places(profile, places)
    elif answer.spread:
        listed = [one for one in places if one.growth is not None and one.growth.rise > 0]
        listed.sort(key=lambda one: -one.growth.rise if one.growth else 0)
    elif answer.state is AnswerState.NOT_GROWING and profile.growth_span is not None:
        listed = []
    else:
        listed = [one for one in places if one.kind != _OF_RUNTIME and one.objects]
        by_count = options.sort == "count"
        listed.sort(key=lambda one: (-one.objects, -one.space) if by_count else (-one.space, -one.objects))
    chosen = set(map(id, listed))
    return listed, [one for one in places if id(one) not in chosen and one.objects]


def _table(
    profile: Profile, answer: Answer, listed: Sequence[Place], options: ReportOptions
) -> Iterator[tuple[str, str]]:
    is_growth = bool(answer.growing or answer.spread)
    shown = listed[: options.top] if options.top else listed
    rates = [_rate(place) for place in shown]
    width = max(14, *map(len, rates), 0)
    if listed:
        heading = "grows by".rjust(width + 1) if is_growth else " "
        yield "dim", f"{heading}{'     holds':>11}{'blocks':>9}  where"
    numbers = {id(place): number for number, place in enumerate(profile.places)}
    sites = _largest_sites(profile, is_growth)
    for number, (place, rate) in enumerate(zip(shown, rates, strict=True), 1):
        site = sites.get(numbers[id(place)])
        yield (
            "bold",
            _cut(
                f"{number:>2}{f' {rate:>{width}}' if is_growth else ''} {_sums(place)}  {where(place, site, options)}"
            ),
        )
        if number <= DETAILED:
            yield from _detail(place, site, options, profile.wall_clock_s - profile.duration_ns / 1e9)
    if len(listed) > len(shown):
        hidden = listed[len(shown) :]
        yield "dim", f"   … {count_text(len(hidden), 'more place')}, {sums_text(hidden)} (-T 0 shows all)"
    for each in profile.unowned:
        rate = rate_text(each.bytes_per_s, (each.high - each.low) / 2)
        style = "bold" if each.part in LEAKED else ""
        yield style, _cut(f"   {rate} in {messages.UNOWNED[each.part]}")


def _largest_sites(profile: Profile, by_growth: bool) -> dict[int, CallSite]:
    """Of each place, by its number: the stack that is shown for it."""
    found = dict[int, CallSite]()
    for site in profile.sites:
        if site.place is None or site.suppressed_by:
            continue
        known = found.get(site.place)
        if known is None or (by_growth and growth_rate(site) > growth_rate(known)):
            found[site.place] = site
    return found


def _rate(place: Place) -> str:
    if place.growth is None:
        return ""
    return rate_text(place.growth.bytes_per_s, run_s=place.growth.run_s, unit=place.unit)


def _sums(place: Place) -> str:
    """Of what is counted the figure alone: the rate or the kind says what it is."""
    if place.unit != BYTE and place.objects:
        return f"{place.space:>10,} {'':>8}"
    space, objects = (size_text(place.space), f"{place.objects:,}") if place.objects else ("freed", "at exit")
    return f"{space:>10} {objects:>8}"


def _missing_lines(profile: Profile, shown: Sequence[Place]) -> str:
    """Of the first place without a line: how to get it; "" = all have one. Generated code's comes with its name."""
    nameless = next((one.module for one in shown if is_generated(one.module) and not one.function), "")
    if nameless and code_label(nameless) != JIT_FRAMES:
        return f"no names of generated code: {messages.GENERATED_CODE}"
    build_ids = {
        each.module: each.build_id for each in profile.modules if each.symbols is not SymbolClass.LINES
    }
    module = next((one.module for one in shown if one.module in build_ids and not one.file), "")
    if not module or module.startswith("[") or is_generated(module):
        return ""
    return f"no lines of {printable(module_name(module))}: {way_out(module, build_ids[module])}"


def where(place: Place, site: CallSite | None, options: ReportOptions) -> str:
    """`Invoice::render  cache.cc:3, by std::string::_M_create  (still referenced)`; `mawk+0x5e10` without a name."""
    name = short_name(place.function) if place.function else ""
    module = module_name(place.module) if place.module else ""
    frame = responsible_frame(site.frames) if site is not None and not name else None
    if frame is not None and module and not is_generated(place.module):
        name = f"{module}+{frame.start:#x}"
    if module and is_generated(place.module):
        name = name or code_label(place.module)
    name = name or (f"nameless code of {module}" if module else "no stack")
    room = max(_FILE_MIN, min(_FILE_MAX, _NAME_AND_FILE_MAX - min(len(name), NAME_MAX)))
    at = (
        f"{_file(place.file, options, room)}:{place.line}"
        if place.file
        else f"[{module}]" * bool(place.function)
    )
    if place.package is not None:
        at += f"{' ' * bool(at)}· {package_text(place.package)}"
    if site is not None and name and (called := called_function(site.frames)):
        at += f"{',' * bool(at)} by {_middle_cut(short_name(called.function), CALLED_MAX)}"
    about = [] if place.kind in ("user", _OF_RUNTIME) else [place.kind]
    if site is not None and site.leaks:
        about.append(_LEAK_WORDS[max(site.leaks, key=lambda leak: leak.space).kind])
    if site is not None and site.approximate:
        about.append("approximate")
    parts = (_middle_cut(printable(name)), printable(at), f"({', '.join(about)})" if about else "")
    return "  ".join(part for part in parts if part)


def package_text(package: Package) -> str:
    """`lz4 4.0.2`; `libfoo1 1.2-3 (dpkg)`."""
    manager = f" ({package.manager})" if package.manager == "dpkg" else ""
    return f"{package.name} {package.version}{manager}"


def _detail(
    place: Place, site: CallSite | None, options: ReportOptions, begun_s: float
) -> Iterator[tuple[str, str]]:
    if place.file and place.line:
        text = source_line_text(place.file, place.line, place.module, begun_s)
        yield from [("dim", _cut(f"     │ {printable(text)}"))] * bool(text)
    if site is None:
        return
    nameless = _module_text(place.module)
    callers = list[str]()
    for frame in own_callers(site.frames):
        name = short_name(frame.function) if frame.function else _module_text(frame.module)
        at = f" {_file(frame.file, options)}:{frame.line}" if frame.file else ""
        caller = f"{_middle_cut(printable(name))}{at}"
        if caller not in callers[-1:] and (callers or place.function or caller != nameless):
            callers.append(caller)
    if callers:
        more = " ← …" if len(callers) > CALLERS_MAX else ""
        yield "dim", _cut(f"     └ {' ← '.join(callers[:CALLERS_MAX])}{more}")


def _module_text(module: str) -> str:
    return code_label(module) if is_generated(module) else f"[{module_name(module)}]"


def _file(file: str | None, options: ReportOptions, most: int = _FILE_MAX) -> str:
    """Relative to the working directory; of a long path the end."""
    name = relative_source(file or "", options.source_root)
    return printable(name) if len(name) <= most else f"…{printable(name[1 - most :])}"


def _middle_cut(name: str, most: int = NAME_MAX) -> str:
    """The end names the function, the beginning its library."""
    half = most // 2 - 2
    return name if len(name) <= most else f"{name[:half]}…{name[-half:]}"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _rest_lines(profile: Profile, others: Sequence[Place], options: ReportOptions) -> Iterator[str]:
    """`Grows little: 57.2 KiB/min in 1 place, most in add_session cache.cc:7`, and the others.

    `Not growing: 512 B in 1 place, most in ThreadPool::submit pool.cc:9; the C/C++ runtime's own: 71.0 KiB`.
    """
    known = set(map(id, others))
    if slow := [one for one in slow_places(profile, counted_places(profile)) if id(one) in known]:
        sums = f"{' and '.join(rates_of(slow))} in {count_text(len(slow), 'place')}"
        yield _cut(f"Grows little: {sums}, most in {where(slow[0], None, options)}")
    known -= set(map(id, slow))
    others = [one for one in others if id(one) in known]
    parts = []
    if steady := [one for one in others if one.kind != _OF_RUNTIME]:
        largest = max(steady, key=lambda one: one.space)
        sums = f"{sums_text(steady)} in {count_text(len(steady), 'place')}"
        parts.append(f"Not growing: {sums}, most in {where(largest, None, options)}")
    if runtime := sum(one.space for one in others if one.kind == _OF_RUNTIME):
        parts.append(f"{'the' if parts else 'The'} C/C++ runtime's own: {size_text(runtime)}")
    if parts:
        yield _cut("; ".join(parts))


def _notes(profile: Profile) -> Iterator[tuple[str, str]]:
    """What the first line and the measured line do not say already."""
    tolerated = what_is_tolerated(profile.coverage)[:TOLERATED_SHOWN_MAX]
    known = {*what_lacks(profile.coverage)[:1], *tolerated, *([profile.answer.why] if profile.answer else [])}
    notes = [*untouched_notes(profile.memory), *(note for note in profile.notes if note not in known)]
    for note in notes[:NOTES_MAX]:
        found = wrap(f"note: {printable(note)}", WIDTH, subsequent_indent="      ")
        yield from (("yellow", line) for line in found[:LINES_MAX])
    if len(notes) > NOTES_MAX:
        yield "dim", f"note: {len(notes) - NOTES_MAX} more (-v)"


def _next_step(profile: Profile, answer: Answer) -> str:
    if "table_full" in profile.totals.lost:
        return messages.NEXT_MORE_LIVE
    if answer.state is AnswerState.CANNOT_TELL and "use --" in answer.why:
        return messages.NEXT_AS_SAID
    is_short = profile.growth_span is None or not profile.growth_span.is_judged
    if answer.state is AnswerState.CANNOT_TELL and is_short and profile.target.exit_status is None:
        return messages.NEXT_LONGER
    is_needless = bool(profile.leaks) or answer.unit != BYTE
    return messages.NEXT[answer.state].replace(messages.NEXT_REACHABILITY if is_needless else "", "")


BYTES_MAX = 1 << 22  # of a source file


@lru_cache(maxsize=256)
def source_line_text(file: str, line: int, module: str, begun_s: float) -> str:
    """The line, without its indentation; "" where there is none, or where the file is newer than the module.

    begun_s: of the measurement. Code of an interpreter is made from its file while the program runs.

    The measured program names the file: it is shown only if it is world-readable.
    """
    try:
        built_ns = begun_s * 1e9 if module in SCRIPT_FRAMES else file_status(module).st_mtime_ns
        descriptor = open_regular(file)
    except (OSError, ValueError):
        return ""
    with open(descriptor, "rb") as stream:
        about = os.fstat(descriptor)
        if about.st_mtime_ns > built_ns or not about.st_mode & stat.S_IROTH or about.st_size > BYTES_MAX:
            return ""
        lines = stream.read(BYTES_MAX).split(b"\n")
    return lines[line - 1].decode("utf-8", "replace").strip() if 0 < line <= len(lines) else ""
