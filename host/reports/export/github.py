"""GitHub Actions: annotations at the lines that leak, and a table for the step's summary."""

from typing import TextIO

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.profile import CallSite, Profile, Verdict
from memleak_android.host.reports.base import ReportOptions, amount, bounded, frame_name, relative_source
from memleak_android.host.reports.text.answer import answer_text
from memleak_android.host.reports.text.gate import culprits, site_line, verdict_line

ANNOTATIONS_MAX = 10  # of one kind that GitHub shows per step
ROWS_MAX = 20
NAME_MAX = 120
MARKS = {Verdict.OK: "✅", Verdict.LEAKS: "❌", Verdict.INCOMPLETE: "⚠️"}


def write_annotations(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """`::error file=…,line=…::…` for each site that broke the limit; `::warning` for an incomplete result."""
    if profile.verdict is Verdict.LEAKS:
        stream.writelines(_annotation(site, options) + "\n" for site in culprits(profile)[:ANNOTATIONS_MAX])
    elif profile.verdict is Verdict.INCOMPLETE:
        reason = profile.notes[0] if profile.notes else "something is missing"
        stream.write(f"::warning title=memleak-android is incomplete::{_data(bounded(reason))}\n")


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
    """Write Markdown: the answer, the verdict, and the largest sites that count (without limits: all of the user's)."""
    totals = profile.totals
    held = amount(totals.inuse_space, totals.inuse_objects)
    stream.write(f"### {MARKS[profile.verdict]} memleak-android: {profile.verdict}\n\n")
    if answer := answer_text(profile):
        stream.write(f"**{_text(answer)}**\n\n")
    stream.write(f"{held} outstanding")
    stream.write(f"; {_text(verdict_line(profile.gate))}.\n\n" if profile.gate else ".\n\n")
    sites = culprits(profile) if profile.gate else [site for site in profile.sites if site.kind == "user"]
    if not sites:
        return
    stream.write("| bytes | allocations | where | line | id |\n|--:|--:|---|---|---|\n")
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


def _text(text: str) -> str:
    """Literal text inside Markdown and its tables: every mark that means something there as an HTML entity."""
    short = bounded(text, NAME_MAX)
    return "".join(c if c.isalnum() or c in " .,/:+-()…" else f"&#{ord(c)};" for c in short)
