"""GitHub Actions: annotations with the answer and at the lines that leak, and a table for the step's summary."""

from typing import TextIO

from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.reports.base import ReportOptions, amount, bounded, frame_name, relative_source
from memleak_android.host.reports.text.answer import answer_text, level, measured_line
from memleak_android.host.reports.text.gate import culprits, gate_text, site_line
from memleak_android.host.reports.units import plural

ANNOTATIONS_MAX = 10  # of one kind that GitHub shows per step
ROWS_MAX = 20
NAME_MAX = 120
LINE_MAX = 500
COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}  # by the answer's level
MARKS = {"error": "❌", "warning": "⚠️", "note": "ℹ️"}
TITLE = "memleak-android"


def write_annotations(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """The answer; `::error file=…,line=…::…` for each site that broke the limit; `::warning` for an incomplete result."""
    if answer := answer_text(profile):
        stream.write(f"::{COMMANDS[level(profile)]} title={TITLE}::{_data(bounded(answer))}\n")
    if profile.is_over_limit:
        shown = culprits(profile)[: ANNOTATIONS_MAX - bool(answer)]
        stream.writelines(_annotation(site, options) + "\n" for site in shown)
    if profile.measurement is Measurement.INCOMPLETE:
        stream.write(f"::warning title={TITLE}::{_data(bounded(measured_line(profile)))}\n")


def _annotation(site: CallSite, options: ReportOptions) -> str:
    frame = responsible_frame(site.frames)
    properties = {"title": "memory leak"}
    if frame and frame.file:
        properties["file"] = relative_source(frame.file, options.source_root)
    if frame and frame.file and frame.line:
        properties["line"] = str(frame.line)
    shown = ",".join(f"{name}={_property(bounded(value))}" for name, value in properties.items())
    return f"::error {shown}::{_data(f'{site_line(site)} (id {site.id})')}"


def _data(text: str) -> str:
    """Escapes as @actions/core does (command.ts); line breaks are escaped already."""
    return text.replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def write_summary(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Write Markdown: the answer, the limit, the largest sites that count (without limits: all of the user's), the measurement."""
    totals = profile.totals
    held = amount(totals.inuse_space, totals.inuse_objects, profile.unit)
    is_good = profile.answer is not None and profile.answer.state is AnswerState.NOT_GROWING
    mark = "✅" if is_good and not profile.is_over_limit else MARKS[level(profile)]
    stream.write(f"### {mark} {_text(answer_text(profile) or TITLE, LINE_MAX)}\n\n{held} outstanding")
    stream.write(f"; {_text(gate_text(profile.gate), LINE_MAX)}.\n\n" if profile.gate else ".\n\n")
    _write_table(profile, stream, options)
    stream.write(f"{_text(measured_line(profile), LINE_MAX)}\n\n")


def _write_table(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    sites = culprits(profile) if profile.gate else [site for site in profile.sites if site.kind == "user"]
    if not sites:
        return
    stream.write(f"| {plural(profile.unit)} | allocations | where | line | id |\n|--:|--:|---|---|---|\n")
    stream.writelines(_row(site, options) + "\n" for site in sites[:ROWS_MAX])
    if len(sites) > ROWS_MAX:
        stream.write(f"\n… and {len(sites) - ROWS_MAX} more.\n")
    stream.write("\n")


def _row(site: CallSite, options: ReportOptions) -> str:
    frame = responsible_frame(site.frames)
    where = _text(frame_name(frame)) if frame else ""
    file = relative_source(frame.file, options.source_root) if frame and frame.file else ""
    line = f"{file}:{frame.line}" if frame and frame.line and file else file
    return f"| {site.inuse_space:,} | {site.inuse_objects:,} | {where} | {_text(line)} | {site.id} |"


def _text(text: str, most: int = NAME_MAX) -> str:
    """Literal text inside Markdown and its tables: every mark that means something there as an HTML entity."""
    short = bounded(text, most)
    return "".join(c if c.isalnum() or c in " .,/:+-()…" else f"&#{ord(c)};" for c in short)
