"""The first line: whether the program leaks, how fast, in how many places; and the last: how it was measured."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from memleak_android.host.console import printable
from memleak_android.host.profile.answer import Answer, AnswerState, Place
from memleak_android.host.profile.answering import counted_places, growing_places, held_places, slow_places
from memleak_android.host.profile.coverage import is_complete, what_is_tolerated, what_lacks
from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.profile.profile import Measurement, Profile
from memleak_android.host.reports.base import bounded
from memleak_android.host.reports.units import count_text, duration_text, rate_text, size_text

WORDS = {
    AnswerState.LEAKING: "LEAKING",
    AnswerState.NOT_GROWING: "NOT GROWING",
    AnswerState.HELD_AT_EXIT: "STILL HELD AT EXIT",
    AnswerState.CANNOT_TELL: "CANNOT TELL",
}
STYLES = {
    AnswerState.LEAKING: "bold red",
    AnswerState.NOT_GROWING: "bold green",
    AnswerState.HELD_AT_EXIT: "bold",
    AnswerState.CANNOT_TELL: "bold yellow",
}
COMMAND_MAX = 40  # characters
LIMIT_S_MAX = 30 * 86_400  # 30 days; a later time is not predicted
FREED_SHARE = 0.5  # of the rise: less is not worth a word


def answer_line(profile: Profile, answer: Answer) -> str:
    """`LEAKING  ./server (pid 15129) grows by 9.0 ± 0.1 MiB/min: 10 places, measured for 25 s`."""
    return f"{WORDS[answer.state]}  {subject(profile)}{_rest(profile, answer)}"


def answer_text(profile: Profile) -> str:
    """answer_line() as formats for other programs have it; "" of a profile without an answer."""
    return answer_line(profile, profile.answer) if profile.answer is not None else ""


def level(profile: Profile) -> str:
    """`error` beyond a limit, `warning` of an answer to be looked at, else `note`: of formats for CI."""
    if profile.is_over_limit:
        return "error"
    state = profile.answer.state if profile.answer is not None else None
    return "warning" if state in (AnswerState.LEAKING, AnswerState.CANNOT_TELL) else "note"


def _rest(profile: Profile, answer: Answer) -> str:
    measured = f"measured for {duration_text(profile.duration_ns)}"
    if answer.state is AnswerState.LEAKING and answer.growth is not None:
        growth = answer.growth
        growing = growing_places(profile, counted_places(profile))
        rates = [rate_text(growth.bytes_per_s, growth.error, growth.run_s, answer.unit)]
        rates += rates_of([place for place in growing if place.unit != answer.unit])
        freed = sum(place.freed for place in growing if place.unit == answer.unit)
        at_exit = (
            f", {size_text(freed, answer.unit)} freed at exit" if freed >= FREED_SHARE * growth.rise else ""
        )
        return f" grows by {' and '.join(rates)}: {_places(answer)}{at_exit}, {measured}"
    if answer.state is AnswerState.CANNOT_TELL:
        return f": {printable(answer.why)}"
    if (
        answer.state is AnswerState.NOT_GROWING
        and profile.growth_span is not None
        and profile.growth_span.is_judged
    ):
        slow = slow_places(profile, counted_places(profile))
        but = f" but for {' and '.join(rates_of(slow))} in {count_text(len(slow), 'place')}" if slow else ""
        return f" does not grow{but}, {measured}"
    if answer.state is AnswerState.NOT_GROWING:
        return " holds nothing at its exit"
    return f" holds {_held(profile)}; too short to tell growth"


def limit_text(profile: Profile, answer: Answer) -> str:
    """`reaches 512.0 MiB (control group /app) in 3.2 h (2.7 h to 4.0 h)`: the limit that comes first; "" without one."""
    growth = answer.growth
    if answer.state is not AnswerState.LEAKING or growth is None or growth.low <= 0 or growth.run_s:
        return ""
    left, limit = min(
        ((each.limit - each.used, each) for each in profile.limits if each.used < each.limit),
        default=(0, None),
        key=lambda one: one[0],
    )
    if limit is None or left / growth.bytes_per_s > LIMIT_S_MAX:
        return ""
    soon, then, late = (
        duration_text(round(1e9 * left / rate)) for rate in (growth.high, growth.bytes_per_s, growth.low)
    )
    between = f" ({soon} to {late})" if soon != late else ""
    return f"reaches {size_text(limit.limit)} ({printable(limit.name)}) in {then}{between}"


def _held(profile: Profile) -> str:
    """`2.0 MiB in 34 blocks and 12 descriptors from 3 places`."""
    places, totals = held_places(profile), profile.totals
    counted = [place for place in places if place.unit != BYTE]
    of_memory = [place for place in places if place.unit == BYTE]
    space = sum(place.space for place in of_memory) + totals.unattributed_space
    blocks = sum(place.objects for place in of_memory) + totals.unattributed_objects
    parts = [f"{size_text(space)} in {count_text(blocks, 'block')}"] * bool(blocks or not counted)
    sums = " and ".join((*parts, *[sums_text(counted)] * bool(counted)))
    return f"{sums} from {count_text(len(places), 'place')}" if places else f"{sums} without a stack"


def by_unit(places: Sequence[Place]) -> dict[str, list[Place]]:
    """Bytes first."""
    units = sorted({place.unit for place in places}, key=lambda unit: (unit != BYTE, unit))
    return {unit: [place for place in places if place.unit == unit] for unit in units}


def rates_of(places: Sequence[Place]) -> list[str]:
    """`57.2 KiB/min`, of each unit."""
    rates = []
    for unit, those in by_unit(places).items():
        growths = [place.growth for place in those if place.growth]
        rates.append(rate_text(sum(one.bytes_per_s for one in growths), None, growths[0].run_s, unit))
    return rates


def sums_text(places: Sequence[Place]) -> str:
    """`2.0 MiB and 12 descriptors`."""
    sums = (size_text(sum(one.space for one in those), unit) for unit, those in by_unit(places).items())
    return " and ".join(sums)


def _places(answer: Answer) -> str:
    if answer.growing:
        return count_text(answer.growing, "place")
    return (
        f"spread over {count_text(answer.spread, 'place')}" if answer.spread else "in memory without a stack"
    )


def subject(profile: Profile) -> str:
    """`./server --port 80 (pid 15129)`; `the whole machine`. Of a long command's program the file alone: arguments tell more."""
    target = profile.target
    name = printable(target.package or target.command)
    program, gap, arguments = name.partition(" ")
    if len(name) > COMMAND_MAX:
        name = f"{PurePosixPath(program).name}{gap}{arguments}"
    name = name if len(name) <= COMMAND_MAX else f"{name[: COMMAND_MAX - 1]}…"
    if not target.pid:
        return name or "the whole machine"
    return f"{name} (pid {target.pid})" if name else f"pid {target.pid}"


def exit_text(wait_status: int) -> str:
    """Text for a wait status (wait(2)): the low 7 bits are the signal, the next byte is the exit code."""
    signal = wait_status & 0x7F
    return f"killed by signal {signal}" if signal else f"exited with status {wait_status >> 8 & 0xFF}"


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
