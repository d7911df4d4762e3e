"""The text report: the first screen; in detail, stacks and what they hold, how certain that is, and what to do next."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TextIO

from memleak_android.host.console import printable
from memleak_android.host.profile.losses import loss_text
from memleak_android.host.profile.profile import CallSite, FpAgreement, Measurement, Profile, SymbolClass
from memleak_android.host.profile.runtime_sites import is_generated, module_name
from memleak_android.host.profile.sort_orders import sorted_sites
from memleak_android.host.reports.base import (
    ROOT,
    ReportOptions,
    amount,
    amount_of,
    bounded,
    leak_name,
    leaks_text,
    write_styled,
)
from memleak_android.host.reports.text import by_place, messages
from memleak_android.host.reports.text.answer import STYLES, answer_line, exit_text, measured_line
from memleak_android.host.reports.text.gate import gate_text, suppression_lines
from memleak_android.host.reports.text.growth import growth_lines, site_growth
from memleak_android.host.reports.text.memory import memory_lines
from memleak_android.host.reports.text.messages import SYSTEM_FOLDERS, way_out
from memleak_android.host.reports.text.past import ages_text, churn_line, past_lines, peak_line
from memleak_android.host.reports.text.processes import process_lines, process_names, shares_text
from memleak_android.host.reports.text.stack import stack_lines
from memleak_android.host.reports.text.stops import stop_lines

KERNEL_TRACER = "kernel"
BY_FRAME_POINTER = "fp"  # method of a frame

MAX_MODULE_NOTES = 5

SITE_STYLE, FRAME_STYLE, WARNING_STYLE, QUIET_STYLE = "bold", "", "yellow", "dim"


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Write the report as text. Control characters in names are escaped."""
    is_detailed = options.verbose or options.show_allocs or options.sort in ("peak", "churn")
    if profile.answer is not None and not is_detailed:
        write_styled(by_place.lines(profile, profile.answer, options), stream, options.colour)
    else:
        write_styled(_lines(profile, options), stream, options.colour)


def _lines(profile: Profile, options: ReportOptions) -> Iterator[tuple[str, str]]:
    if profile.answer is not None:
        yield STYLES[profile.answer.state], answer_line(profile, profile.answer)
        yield "", ""
    yield from (("", line) for line in _header(profile))
    for number, line in enumerate(past_lines(profile, options)):
        if not number:
            yield "", ""
        yield "" if number else SITE_STYLE, line
    if profile.processes:
        yield "", ""
        yield SITE_STYLE, f"by process: {len(profile.processes):,} hold something"
        yield from (("", line) for line in process_lines(profile, options))
    sites = sorted_sites(profile.sites, options.sort)
    names = process_names(profile)
    others = sorted({s.kind for s in sites} - {"user", *messages.SECTIONS})
    for kind in ("user", *others, *messages.SECTIONS):
        of_kind = [site for site in sites if site.kind == kind and not site.suppressed_by]
        if of_kind:
            yield "", ""
            yield from _section(kind, of_kind, options, names)
    suppressed = [site for site in sites if site.suppressed_by]
    if suppressed:
        yield "", ""
        yield from _section("suppressed", suppressed, options, names)
    yield "", ""
    yield from _summary(profile)
    yield from _advice(profile)


def _header(profile: Profile) -> Iterator[str]:
    target = profile.target
    is_whole = not target.pid and (target.tracer == KERNEL_TRACER or bool(profile.processes))
    of_pid = "the whole machine" if is_whole else f"pid {target.pid}"
    subject = printable(target.package or target.command) or of_pid
    details = [of_pid] if subject != of_pid and not is_whole else []
    details += [target.arch, *([f"device {printable(target.serial)}"] if target.serial else [])]
    if target.exit_status is not None:
        details.append(exit_text(target.exit_status))
    yield f"target    {subject} ({', '.join(details)})"
    sampled = f"one sample per {target.sample_bytes:,} bytes" if target.sample_bytes else "every allocation"
    estimated = ", figures are estimates" if any(s.stderr_space is not None for s in profile.sites) else ""
    yield f"tracer    {bounded(target.tracer)}, {sampled}{estimated}; stacks by {bounded(target.unwind)}"
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(profile.wall_clock_s))
    yield f"time      {profile.duration_ns / 1e9:.1f} s until {clock}"
    for number, line in enumerate(growth_lines(profile)):
        yield f"{'' if number else 'growth':<9} {line}"
    if profile.peak is not None:
        yield f"peak      {peak_line(profile.peak, profile.totals.inuse_space, profile.unit)} (--sort peak)"


def _section(
    kind: str, sites: list[CallSite], options: ReportOptions, names: Mapping[int, str]
) -> Iterator[tuple[str, str]]:
    title = messages.SECTIONS.get(kind, "outstanding allocations" if kind == "user" else kind)
    yield SITE_STYLE, f"{title}: {amount_of(sites)}"
    shown = sites[: options.top] if options.top else sites
    for number, site in enumerate(shown, 1):
        yield from _site(number, site, options, names)
    hidden = sites[len(shown) :]
    if hidden:
        yield QUIET_STYLE, f"... {len(hidden):,} more: {amount_of(hidden)} (-T {len(sites)} shows all)"


def _site(
    number: int, site: CallSite, options: ReportOptions, names: Mapping[int, str]
) -> Iterator[tuple[str, str]]:
    error = f" ± {site.stderr_space:,}" if site.stderr_space is not None else ""
    total = amount_of([site])
    yield SITE_STYLE, f"{number:>3}. {total}{error} from stack"
    about = [f"oldest {site.oldest_ns / 1e9:.1f} s{ages_text(site.ages)}", f"id {site.id}"]
    if site.alloc_space is not None and site.alloc_objects is not None:
        about.insert(0, f"allocated in all {amount(site.alloc_space, site.alloc_objects, site.unit)}")
    if growth := site_growth(site):
        about.insert(0, growth)
    yield QUIET_STYLE, f"     {', '.join(about)}"
    if site.processes:
        yield "", f"     in {shares_text(site, names)}"
    if site.leaks:
        yield SITE_STYLE, f"     {leaks_text(site.leaks)}"
    if site.suppressed_by:
        yield QUIET_STYLE, f"     suppressed by {bounded(site.suppressed_by)}"
    if site.approximate:
        yield WARNING_STYLE, f"     {messages.APPROXIMATE}"
    if options.show_allocs and not options.combined_only:
        for block in site.blocks:
            yield QUIET_STYLE, f"       addr = {block.address:#x} size = {block.size}"
    yield from ((FRAME_STYLE, line) for line in stack_lines(site.frames, options))
    if site.end != ROOT:
        reason = messages.ENDS.get(site.end, messages.END_UNKNOWN)
        if site.frames[-1].method == BY_FRAME_POINTER and site.end == "NO_PROGRESS":
            reason = messages.END_BY_FRAME_POINTER
        yield WARNING_STYLE, f"       partial stack ({site.end}): {reason}"


def _summary(profile: Profile) -> Iterator[tuple[str, str]]:
    totals = profile.totals
    yield SITE_STYLE, f"outstanding    {amount(totals.inuse_space, totals.inuse_objects, profile.unit)}"
    kinds = sorted({s.kind for s in profile.sites} - {"mmap"}, key=lambda kind: (kind != "user", kind))
    for kind in kinds:
        yield "", f"  {kind:<12} {_sum_of_kind(profile, kind)}"
    if totals.unattributed_objects:
        total = amount(totals.unattributed_space, totals.unattributed_objects, profile.unit)
        asked = totals.unattributed_objects - totals.unasked_objects
        why = messages.UNATTRIBUTED if asked else messages.UNASKED
        yield WARNING_STYLE if asked else "", f"  unattributed {total}: {why}"
    if any(s.kind == "mmap" for s in profile.sites):
        yield "", f"mappings       {_sum_of_kind(profile, 'mmap')} (not part of the above)"
    for leak in reversed(profile.leaks):
        yield "", f"{leak_name(leak.kind):<15} {amount(leak.space, leak.objects)}"
    if totals.alloc_space is not None and totals.alloc_objects is not None:
        yield (
            "",
            f"allocated      {amount(totals.alloc_space, totals.alloc_objects, profile.unit)} over the whole time",
        )
    if churn := churn_line(profile):
        yield "", f"given back     {churn}"
    if totals.untracked_frees:
        yield "", f"frees          {totals.untracked_frees:,} of blocks whose allocation was not seen"
    yield from (("", line) for line in memory_lines(profile.memory))
    yield "", _unwinding_line(profile)
    yield from _agreement_lines(profile.unwinding.fp_agreement)
    yield from (("", line) for line in stop_lines(profile.stops))
    for cause, count in totals.lost.items():
        yield WARNING_STYLE, f"lost           {count:,}: {loss_text(cause) or printable(cause)}"
    if profile.gate is not None:
        yield "", f"gate           {gate_text(profile.gate)}"
        yield from (("", line) for line in suppression_lines(profile.gate))


def _sum_of_kind(profile: Profile, kind: str) -> str:
    sites = [s for s in profile.sites if s.kind == kind]
    return f"{amount_of(sites)}, {len(sites):,} stack{'s' * (len(sites) != 1)}"


def _unwinding_line(profile: Profile) -> str:
    unwinding = profile.unwinding
    line = f"stacks         {unwinding.stacks:,} unwound, {unwinding.complete:,} complete"
    if not unwinding.partial:
        return line
    ends = ", ".join(f"{name} {count:,}" for name, count in unwinding.ends.items() if name != ROOT and count)
    return f"{line}, {unwinding.partial:,} partial ({ends})"


def _agreement_lines(agreement: FpAgreement | None) -> Iterator[tuple[str, str]]:
    if agreement is None:
        return
    outcomes = {
        "identical": agreement.identical,
        "all but the start": agreement.start_missing,
        "cut": agreement.cut,
        "without the allocating function's caller": agreement.caller_missing,
        "with gaps": agreement.skipped,
        "wrong": agreement.wrong,
    }
    counts = ", ".join(f"{count:,} {what}" for what, count in outcomes.items() if count)
    yield (
        "",
        f"frame pointers {agreement.share:.1%} of {agreement.stacks:,} stacks as by cfi ({counts or 'none compared'});",
    )
    depth = f"{agreement.mean_common_prefix:.1f} of {agreement.mean_depth:.1f} frames"
    yield "", f"               the innermost {depth} the same on average"


def _advice(profile: Profile) -> Iterator[tuple[str, str]]:
    """Notes, modules without symbols, what is said of the measurement, and the command to run next."""
    for note in profile.notes:
        yield WARNING_STYLE, f"note: {printable(note)}"
    nameless = _nameless_modules(profile)
    for (module, build_id), (n_nameless, n_frames) in list(nameless.items())[:MAX_MODULE_NOTES]:
        frames = (
            f"{n_nameless} of {n_frames} frame{'s' * (n_frames != 1)} in {printable(module_name(module))}"
        )
        yield (
            WARNING_STYLE,
            f"note: no symbols for {frames} (build-id {build_id or 'none'}); {way_out(module, build_id)}",
        )
    next_step = _next_step(
        profile, any(not m.startswith(SYSTEM_FOLDERS) and not is_generated(m) for m, _ in nameless)
    )
    yield WARNING_STYLE if profile.measurement is Measurement.INCOMPLETE else "", measured_line(profile)
    if next_step:
        yield "", f"next: {next_step}"


def _nameless_modules(profile: Profile) -> dict[tuple[str, str], tuple[int, int]]:
    """(module, build_id) → (nameless, all) code locations in the user's stacks, most first.

    Modules with debug information are left out: no file names more of them.
    """
    distinct = {id(f): f for site in profile.sites if site.kind == "user" for f in site.frames}
    frames = {(f.module, f.build_id, f.vaddr): not f.function for f in distinct.values() if f.module}
    whole = {(m.module, m.build_id) for m in profile.modules if m.symbols is SymbolClass.LINES}
    all_frames = Counter((module, build_id) for module, build_id, _ in frames)
    without = Counter((module, build_id) for (module, build_id, _), nameless in frames.items() if nameless)
    return {key: (n, all_frames[key]) for key, n in without.most_common() if key not in whole}


def _next_step(profile: Profile, has_nameless: bool) -> str:
    if "table_full" in profile.totals.lost:
        return messages.NEXT_MORE_LIVE
    if has_nameless:
        return messages.NEXT_SYMBOLS
    if any(s.kind == "user" for s in profile.sites):
        return messages.NEXT_COMPARE
    return ""
