"""Is a measurement complete? Answers each condition of host/profile/coverage.py from what a session left behind."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from memleak_android.host.analysis.memory_use import SECOND_LIBC, has_second_libc
from memleak_android.host.heap.capture import Capture, Snapshot
from memleak_android.host.profile.coverage import Answer, Condition, Finding, Reason, findings
from memleak_android.host.profile.growth import UnownedGrowth, UnownedPart
from memleak_android.host.profile.losses import LOSS_CAUSES
from memleak_android.host.profile.profile import CallSite, Totals
from memleak_android.host.symbols.symbolizer import SIGNAL_TRAMPOLINES
from memleak_android.host.wire.blocks import Lost
from memleak_android.unwind.trace import TraceEnd

NO_ALLOCATION = (
    "not one allocation was seen: the program made none, or by an allocator that was not traced (-O)"
)
UNBALANCED = "the kernel's figures of the process were read too seldom, or not at all: memory beyond the blocks may grow"
_BY_KERNEL = ("bpf", "bcc", "kernel")
_CUT_STACKS_MAX = 0.5  # share of the blocks held: above it the report does not say who allocates


def judge_coverage(
    capture: Capture,
    totals: Totals,
    sites: Sequence[CallSite],
    max_lost: float,
    missing: Sequence[str] = (),
    unowned: Sequence[UnownedGrowth] = (),
    is_unbalanced: bool = False,
) -> tuple[Finding, ...]:
    """max_lost: the share of calls, and of blocks without a stack, that is tolerated.

    missing: what the reader of the capture knows to be missing.
    is_unbalanced: growth is judged, and the kernel's figures were read too seldom for it.
    """
    reasons = [
        *(Reason(Condition.RECORD, Answer.NO, text) for text in missing),
        *capture.session.findings.reasons,
        *capture.gaps,
        *_of_session(capture),
        *_of_programs(capture, totals),
        *_of_calls(capture, totals, max_lost),
        *_of_namespaces(capture),
        *_of_stacks(capture, totals, sites, max_lost),
        *_of_record(capture, totals),
        *map(_of_balance, unowned),
        *([Reason(Condition.BALANCE, Answer.UNKNOWN, UNBALANCED)] * is_unbalanced),
    ]
    return findings(_answered(capture), reasons)


def _answered(capture: Capture) -> set[Condition]:
    """The conditions that were looked at. Functions and programs are the tracer's to answer, in the SESSION block."""
    found = {*capture.session.findings.answered, Condition.RECORD, Condition.BALANCE}
    if capture.hello is not None:
        found.add(Condition.SESSION)
    if capture.status is not None:  # else what was lost is not known
        found |= {Condition.CALLS, Condition.STACKS}
    return found


def recorded_coverage(capture: Capture) -> Mapping[Condition, Sequence[Reason]]:
    """The part of the answers that a recording stores; its reader derives the rest from the other blocks."""
    kept = [*capture.session.findings.reasons, *_malformed(capture)]
    answered = {*capture.session.findings.answered, *(reason.condition for reason in kept)}
    return {
        condition: [reason for reason in kept if reason.condition is condition]
        for condition in Condition
        if condition in answered
    }


def _of_session(capture: Capture) -> Iterator[Reason]:
    if capture.end is None:
        snapshot = capture.snapshot
        age = _age_of(snapshot, capture.last_timestamp_ns)
        yield Reason(Condition.SESSION, Answer.NO, f"the session did not end in order{age}")
    elif _died_of_sandbox(capture.end, capture.session.tracing.tracer):
        text = (
            "the program was killed for a system call that its sandbox (seccomp) forbids, perhaps one of the"
            " recorder's: use --tracer bpf"
        )
        yield Reason(Condition.SESSION, Answer.NO, text)


def _died_of_sandbox(end: np.void, tracer: str) -> bool:
    """Whether SIGSYS ended a program in which the shim makes system calls; BPF makes none."""
    status = int(end["status"])
    return status >= 0 and status & 0x7F == signal.SIGSYS and tracer not in _BY_KERNEL


def _age_of(snapshot: Snapshot | None, last_timestamp_ns: int) -> str:
    if snapshot is None:
        return ""
    age_ns = max(0, last_timestamp_ns - snapshot.timestamp_ns)
    return f": what is held is that of the last snapshot, {age_ns / 1e9:.1f} s before its last sign of life"


def _of_programs(capture: Capture, totals: Totals) -> Iterator[Reason]:
    if programs := totals.lost.get("programs", 0):
        text = f"{programs} program{'s' * (programs > 1)} of the target could not be measured"
        yield Reason(Condition.PROGRAMS, Answer.NO, text)
    for text in capture.session.findings.left_out:
        yield Reason(Condition.PROGRAMS, Answer.TOLERATED, text)


def _of_calls(capture: Capture, totals: Totals, max_lost: float) -> Iterator[Reason]:
    if table_full := totals.lost.get("table_full", 0):
        text = f"the live table was full: {table_full} blocks are missing in all sums (raise --max-live)"
        yield Reason(Condition.CALLS, Answer.NO, text)
    lost = {name: n for name, n in totals.lost.items() if _spoils(name) is Condition.CALLS}
    expected = {Lost.MISSED_FREE.name.lower()} if capture.session.tracing.expects_missing_frees else set()
    unexpected = {name: n for name, n in lost.items() if name not in expected}
    missed = sum(unexpected.values())
    share = missed / max(1, _seen_calls(capture) + missed)
    if share > max_lost:
        most = max(unexpected, key=unexpected.__getitem__)
        text = (
            f"{share:.2%} of the calls were missed: sums can be wrong (--max-lost is {max_lost:.2%};"
            f" {lost[most]:,} {LOSS_CAUSES[most].text})"
        )
        yield Reason(Condition.CALLS, Answer.NO, text)
    elif lost:
        yield Reason(Condition.CALLS, Answer.TOLERATED, f"{sum(lost.values()):,} calls were missed")
    if totals.alloc_objects == 0 and capture.session.tracing.traces_heap:
        is_attached = capture.session.target.is_attached  # it may have been idle
        left_out = capture.session.findings.left_out  # a master's workers
        text = f"not one allocation was seen, and {left_out[0]}" if left_out else NO_ALLOCATION
        yield Reason(Condition.CALLS, Answer.TOLERATED if is_attached else Answer.UNKNOWN, text)


def _of_namespaces(capture: Capture) -> Iterator[Reason]:
    """dlmopen() brings a C library of its own, whose functions no hook replaces."""
    texts = {each.text for each in capture.maps}
    is_second = capture.session.fields.get(SECOND_LIBC) or any(map(has_second_libc, texts))
    if is_second and capture.session.tracing.tracer not in _BY_KERNEL:
        seen = "what a second C library (dlmopen) allocates is not seen: use --tracer bpf"
        yield Reason(Condition.CALLS, Answer.NO, seen)


def _seen_calls(capture: Capture) -> int:
    names = ("alloc_objects", "free_objects", "untracked_frees")
    return 0 if capture.status is None else sum(int(capture.status[name]) for name in names)


def _spoils(cause: str) -> Condition:
    """A cause that this version does not know is one of the record: what it means is not known."""
    return LOSS_CAUSES[cause].spoils if cause in LOSS_CAUSES else Condition.RECORD


def _of_stacks(
    capture: Capture, totals: Totals, sites: Sequence[CallSite], max_lost: float
) -> Iterator[Reason]:
    lost = {name: n for name, n in totals.lost.items() if _spoils(name) is Condition.STACKS}
    mappings = lost.pop("mappings", 0)
    without = totals.unattributed_objects - totals.unasked_objects
    share = without / max(1, totals.inuse_objects)
    if share > max_lost:
        text = f"{share:.2%} of the blocks held have no stack (--max-lost is {max_lost:.2%})"
        yield Reason(Condition.STACKS, Answer.NO, text)
    elif without:
        yield Reason(Condition.STACKS, Answer.TOLERATED, f"{without:,} of the blocks held have no stack")
    if stacks := sum(lost.values()):
        text = f"{stacks:,} stack{'s were' if stacks > 1 else ' was'} lost"
        yield Reason(Condition.STACKS, Answer.TOLERATED, text)
    if mappings:
        dropped = f"{mappings:,} mapping change{'s were' if mappings > 1 else ' was'} dropped"
        text = f"{dropped}: frames may be named in the wrong module"
        yield Reason(Condition.STACKS, Answer.TOLERATED, text)
    yield from cut_stacks(sites, is_by_choice=capture.session.tracing.unwind_mode == "fp")


def cut_stacks(sites: Sequence[CallSite], *, is_by_choice: bool) -> Iterator[Reason]:
    """is_by_choice: the user asked for frame pointers, so stacks that they cut are tolerated."""
    cut = [site for site in sites if site.end != TraceEnd.ROOT.name]
    if not cut:
        return
    blocks, all_blocks = (sum(site.inuse_objects for site in some) for some in (cut, sites))
    text = f"{len(cut):,} of {len(sites):,} stacks are cut, those of {blocks:,} of {all_blocks:,} blocks"
    if behind := sum(map(_ends_behind_handler, cut)):
        text += f" ({behind:,} behind a signal handler, where the interrupted stack is not sent: sigaltstack)"
    is_most = blocks > all_blocks * _CUT_STACKS_MAX
    yield Reason(Condition.STACKS, Answer.NO if is_most and not is_by_choice else Answer.TOLERATED, text)


def _ends_behind_handler(site: CallSite) -> bool:
    """Of what was interrupted only registers are known: the pc, and perhaps a link register."""
    behind = list(takewhile(lambda frame: frame.function not in SIGNAL_TRAMPOLINES, reversed(site.frames)))
    is_of_handler = len(behind) < len(site.frames)
    is_without_stack = len({frame.address for frame in behind}) <= 2
    return site.end == TraceEnd.STACK_TRUNCATED.name and is_of_handler and is_without_stack


def _of_record(capture: Capture, totals: Totals) -> Iterator[Reason]:
    snapshot = capture.snapshot
    if snapshot is None:
        text = "no snapshot of the live table: what is held is not known"
        yield Reason(Condition.RECORD, Answer.NO, text)
    elif not snapshot.is_whole:
        text = "the only snapshot of the live table is cut: more is held than shown"
        yield Reason(Condition.RECORD, Answer.NO, text)
    yield from _malformed(capture)
    if capture.unknown_kinds:
        text = f"{len(capture.unknown_kinds)} kinds of blocks are newer than this program"
        yield Reason(Condition.RECORD, Answer.UNKNOWN, text)
    for name, n in totals.lost.items():
        if _spoils(name) is Condition.RECORD:
            is_known = name in LOSS_CAUSES
            text = (
                f"{n:,} {LOSS_CAUSES[name].text}"
                if is_known
                else f"{n:,} lost of a cause that is newer than this program"
            )
            yield Reason(Condition.RECORD, Answer.TOLERATED if is_known else Answer.UNKNOWN, text)


_UNOWNED = {
    UnownedPart.MAPPINGS: "the process grows by memory that belongs to no block and no region that was seen",
    UnownedPart.ALLOCATOR: "the allocator's memory grows by more than the blocks that were counted",
    UnownedPart.REGIONS: "the memory written to in regions of mmap grows, in too few of them to be judged",
    UnownedPart.OLDER: "blocks from before the measurement were given back: they are in no sum",
}


def _of_balance(growth: UnownedGrowth) -> Reason:
    """An allocator may keep what it was given back, a region be written to late; memory that no call made is missing."""
    answer = Answer.NO if growth.part is UnownedPart.MAPPINGS else Answer.TOLERATED
    return Reason(Condition.BALANCE, answer, _UNOWNED[growth.part])


def _malformed(capture: Capture) -> Iterator[Reason]:
    """The blocks that were skipped."""
    if n := len(capture.malformed):
        text = f"{n:,} block{'s' * (n != 1)} could not be used ({capture.malformed[0].message})"
        yield Reason(Condition.RECORD, Answer.NO, text)
