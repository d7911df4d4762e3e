"""A measurement is complete where every condition is answered with yes; no loss, no refusal and no silence leads there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memleak_android.host.analysis.coverage import cut_stacks
from memleak_android.host.analysis.hook_coverage import unprobed_programs
from memleak_android.host.analysis.pipeline import View, thread_stops
from memleak_android.host.heap.capture import Capture
from memleak_android.host.profile.coverage import (
    Answer,
    Condition,
    Reason,
    findings,
    is_complete,
    is_sufficient,
)
from memleak_android.host.profile.losses import LOSS_CAUSES
from memleak_android.host.profile.profile import Measurement, Profile, StopMoment, ThreadStop
from memleak_android.host.tracers.inline.target import reserved
from memleak_android.host.wire.blocks import STOP, Block, BlockKind, Lost, ProcessEvent
from memleak_android.host.wire.payloads import Maps, encode_gap, encode_text
from memleak_android.host.wire.session import SessionInfo
from tests.support.builders.analysed import profile_of
from tests.support.builders.blocks import (
    MAPS,
    SESSION,
    end,
    evidence,
    evidence_record,
    hello,
    live_rows,
    maps,
    short_recording,
    snapshot,
    status,
    write_recording,
)
from tests.support.builders.profiles import MALLOC, site

ONE = [evidence(evidence_record(sequence=1, key=7, pc=0x401000)), *snapshot(live_rows({"key": 7}))]
COUNTS = {"alloc_objects": 1_000_000, "alloc_bytes": 16_000_000}


def measured(
    path: Path, *blocks: Block, view: View | None = None, lost: dict[Lost, int] | None = None
) -> Profile:
    counts = status(lost=lost, **COUNTS)
    return profile_of(short_recording(path / "a.memleak", *ONE, *blocks, counts=counts), view)


def session(text: str) -> Block:
    return encode_text(BlockKind.SESSION, f'{{"unwind": "fp", {text}}}')


def answers(profile: Profile) -> dict[Condition, Answer]:
    return {one.condition: one.answer for one in profile.coverage}


def test_complete_where_all_is_answered(tmp_path: Path) -> None:
    profile = measured(tmp_path)
    assert answers(profile) == dict.fromkeys(Condition, Answer.YES)
    assert is_complete(profile.coverage) and profile.measurement is Measurement.COMPLETE


def test_the_list_is_closed() -> None:
    """A condition that nobody looked at is unknown, and so is a list without it."""
    whole = findings(Condition, [])
    assert is_complete(whole) and is_sufficient(whole)
    for left_out in Condition:
        silent = findings(set(Condition) - {left_out}, [])
        assert not is_sufficient(silent) and not is_complete(silent)
        assert not is_sufficient([one for one in whole if one.condition is not left_out])
    assert not is_complete([]) and not is_sufficient([])


@pytest.mark.parametrize("cause", Lost)
def test_no_loss_leads_to_complete(cause: Lost, tmp_path: Path) -> None:
    """One of a million is within --max-lost; none is tolerated without --max-lost where calls were missed."""
    profile = measured(tmp_path, lost={cause: 1})
    spoilt = LOSS_CAUSES[cause.name.lower()].spoils
    assert answers(profile)[spoilt] is not Answer.YES and not is_complete(profile.coverage)
    strict = measured(tmp_path, lost={cause: 1}, view=View(max_lost=0))
    if spoilt in (Condition.CALLS, Condition.PROGRAMS):
        assert strict.measurement is Measurement.INCOMPLETE
    if spoilt is Condition.CALLS:
        reasons = [text for one in strict.coverage for text in one.reasons]
        assert any(LOSS_CAUSES[cause.name.lower()].text in text for text in reasons)


@pytest.mark.parametrize("condition", Condition)
@pytest.mark.parametrize("answer", [answer for answer in Answer if answer is not Answer.YES])
def test_no_gap_of_the_agent_leads_to_complete(condition: Condition, answer: Answer, tmp_path: Path) -> None:
    profile = measured(tmp_path, encode_gap(Reason(condition, answer, "it was not there")))
    assert answers(profile)[condition] is answer and not is_complete(profile.coverage)
    assert (profile.measurement is Measurement.COMPLETE) == (answer is Answer.TOLERATED)
    assert ("it was not there" in profile.notes) == (answer is not Answer.TOLERATED)


@pytest.mark.parametrize(
    "answered", ["", '"functions": []', '"programs": []', '"functions": 7, "programs": []']
)
def test_a_tracer_that_does_not_answer_is_unknown(answered: str, tmp_path: Path) -> None:
    profile = measured(tmp_path, session(f'"coverage": {{{answered}}}'))
    assert Answer.UNKNOWN in answers(profile).values() and profile.measurement is Measurement.INCOMPLETE


@pytest.mark.parametrize(
    "reason", ['["no", "x"]', '["unknown", "x"]', '["yes?", "x"]', '"x"', "[]", "null", '["no"]']
)
def test_a_reason_of_any_shape_counts_against_it(reason: str, tmp_path: Path) -> None:
    profile = measured(tmp_path, session(f'"coverage": {{"functions": [{reason}], "programs": []}}'))
    assert profile.measurement is Measurement.INCOMPLETE


def test_a_session_without_end_or_status(tmp_path: Path) -> None:
    first = [
        encode_text(BlockKind.SESSION, '{"unwind": "fp", "coverage": {"functions": [], "programs": []}}')
    ]
    whole = [hello(), *first, maps(MAPS), *ONE, status(**COUNTS), end()]
    for left_out in (len(whole) - 2, len(whole) - 1):
        blocks = [block for number, block in enumerate(whole) if number != left_out]
        profile = profile_of(write_recording(tmp_path / "a.memleak", blocks))
        assert profile.measurement is Measurement.INCOMPLETE, left_out
    assert profile_of(write_recording(tmp_path / "a.memleak", whole)).measurement is Measurement.COMPLETE


def test_a_report_of_cut_stacks_alone_is_not_ok(tmp_path: Path) -> None:
    """By CFI, of which a mapping without a file has none."""
    profile = measured(tmp_path, encode_text(BlockKind.SESSION, SESSION.replace('"fp"', '"cfi"')))
    assert answers(profile)[Condition.STACKS] is Answer.NO and profile.measurement is Measurement.INCOMPLETE
    assert "1 of 1 stacks are cut, those of 1 of 1 blocks" in profile.notes


@pytest.mark.parametrize(
    ("cut", "answer"), [(0, Answer.YES), (1, Answer.TOLERATED), (2, Answer.TOLERATED), (3, Answer.NO)]
)
def test_cut_stacks(cut: int, answer: Answer) -> None:
    """Of four, each of one block."""
    sites = [site(str(n), 16, 1, MALLOC, end="STACK_TRUNCATED" if n < cut else "ROOT") for n in range(4)]
    found = [reason.answer for reason in cut_stacks(sites, is_by_choice=False)]
    assert found == ([] if answer is Answer.YES else [answer])
    by_choice = [reason.answer for reason in cut_stacks(sites, is_by_choice=True)]
    assert by_choice == ([Answer.TOLERATED] if cut else [])


@pytest.mark.parametrize(("depth", "is_named"), [(1, True), (2, True), (3, False)])
def test_a_stack_that_is_cut_further_out_is_not_cut_behind_the_handler(depth: int, is_named: bool) -> None:
    trampoline = replace(MALLOC, function="__restore_rt")
    behind = [replace(MALLOC, function="f", address=8 * n) for n in range(depth)]
    cut = site("1", 16, 1, MALLOC, trampoline, behind[0], *behind, end="STACK_TRUNCATED")
    (reason,) = cut_stacks([cut], is_by_choice=False)
    assert ("1 behind a signal handler" in reason.text) == is_named


@pytest.mark.parametrize(
    ("more", "answer", "text"),
    [
        ("", Answer.UNKNOWN, "(-O)"),
        ('"left_out": ["its workers were not"],', Answer.UNKNOWN, "and its workers were not"),
        ('"attached": true,', Answer.TOLERATED, "(-O)"),
        ('"heap": false,', Answer.YES, ""),
    ],
)
def test_not_one_allocation(more: str, answer: Answer, text: str, tmp_path: Path) -> None:
    blocks = [session(f'{more} "coverage": {{"functions": [], "programs": []}}'), *snapshot(live_rows())]
    profile = profile_of(short_recording(tmp_path / "a.memleak", *blocks, counts=status()))
    (found,) = (each for each in profile.coverage if each.condition is Condition.CALLS)
    assert found.answer is answer and (found.reasons or ("",))[0].endswith(text)


def test_what_is_newer_than_this_program(tmp_path: Path) -> None:
    assert measured(tmp_path, Block(30, b"whatever")).measurement is Measurement.INCOMPLETE


def test_a_finished_recording_says_the_same(tmp_path: Path) -> None:
    gap = encode_gap(Reason(Condition.PROGRAMS, Answer.UNKNOWN, "who knows"))
    asked = session('"coverage": {"functions": [["no", "f() is not traced"]], "programs": []}')
    raw = short_recording(tmp_path / "a.memleak", *ONE, gap, asked, counts=status(**COUNTS))
    finished = tmp_path / "b.memleak"
    profile = profile_of(raw, finished=finished)
    assert profile_of(finished).coverage == profile.coverage


PID = 7
LIBC = "/lib/libc.so"


def capture(*images: dict[str, int], lost: int = 0, allocator: str = LIBC) -> Capture:
    """images: by exec, one after another: path → inode of what each maps."""
    made = Capture(session=SessionInfo.decode({"about": {"allocator": allocator}}))
    for number, image in enumerate(images):
        process: Any = np.zeros(1, [("pid", "u4"), ("event", "u2"), ("timestamp_ns", "u8"), ("comm", "S16")])
        process[0] = (PID, ProcessEvent.EXEC, number * 100, f"image{number}".encode())
        made.processes.append(process)
        names = ["pid", "timestamp_ns", "device_major", "device_minor", "inode"]
        rows: Any = np.zeros(len(image), [(name, "u8") for name in names])
        for i, inode in enumerate(image.values()):
            rows[i] = (PID, number * 100 + 1 + i, 8, 1, inode)
        made.mappings.append((rows, list(image)))
    made.status = np.zeros(1, [("lost", "u8", 16)])[0]
    made.status["lost"][Lost.MAPPINGS] = lost
    return made


@pytest.mark.parametrize(
    "images",
    [
        [{"/sh": 1, LIBC: 2}],
        [{"/sh": 1, LIBC: 2}, {"/prog": 3, LIBC: 2}],
        [{"/sh": 1, LIBC: 2}, {"/static": 3}, {"/prog": 4, LIBC: 2}],
        [{"/sh": 1, LIBC: 2}, {}],  # ended before it mapped anything
    ],
    ids=["no exec", "same allocator", "in between", "nothing mapped"],
)
def test_measured(images: list[dict[str, int]]) -> None:
    assert unprobed_programs(capture(*images)) == []


@pytest.mark.parametrize("last", [{"/prog": 3, LIBC: 9}, {"/static": 3}], ids=["other root", "static"])
def test_unmeasured(last: dict[str, int]) -> None:
    images = ({"/sh": 1, LIBC: 2}, last)
    (reason,) = unprobed_programs(capture(*images))
    assert reason.text.endswith(f"without {LIBC}: image1 (1 in all)")
    assert [one.answer for one in unprobed_programs(capture(*images, lost=1))] == [Answer.UNKNOWN]
    assert unprobed_programs(capture(*images, allocator="")) == []


@pytest.mark.parametrize(("code", "is_measured"), [(LIBC, True), ("/static", False)])
def test_children_from_before_an_attach(code: str, is_measured: bool) -> None:
    """They never called exec in the session, and their code is known by their maps alone."""
    made = capture({"/sh": 1, LIBC: 2})
    made.session |= {"pid": PID}
    child: Any = np.zeros(1, [("pid", "u4"), ("event", "u2"), ("timestamp_ns", "u8"), ("comm", "S16")])
    child[0] = (8, ProcessEvent.START, 50, b"worker")
    made.processes.append(child)
    line = f"7f0000000000-7f0000001000 r-xp 00000000 08:01 {2 if is_measured else 3} {code}\n"
    made.maps.append(Maps(60, 8, line))
    found = [reason.text for reason in unprobed_programs(made)]
    said = f"not measured, because it is another program, without {LIBC}: worker (1 in all)"
    assert found == ([] if is_measured else [said])


def test_in_order_of_time_and_without_what_is_not_known() -> None:
    rows = np.array(
        [(30, 3, 7, 5, 3, 2, 0), (20, 2, 7, 5, 2, 1, 0), (25, 9, 7, 5, 9, 1, 0), (26, 9, 7, 5, 2, 3, 0)], STOP
    )
    capture = Capture()
    capture.add(Block(BlockKind.STOPS, rows.tobytes()), -1)
    capture.add(Block(BlockKind.STOPS, np.array([(10, 1, 7, 5, 1, 1, 0)], STOP).tobytes()), -1)
    assert thread_stops(capture) == (
        ThreadStop(StopMoment.PREPARE, False, 1, 5, 7),
        ThreadStop(StopMoment.ATTACH, False, 2, 5, 7),
        ThreadStop(StopMoment.DETACH, True, 3, 5, 7),
    )


def test_a_hostile_recording_s_are_bounded() -> None:
    capture = Capture()
    capture.add(Block(BlockKind.STOPS, np.array([(1, 2, 7, 5, 2, 1, 0)] * 100_000, STOP).tobytes()), -1)
    assert len(thread_stops(capture)) == 1024
    capture.add(Block(BlockKind.STOPS, np.array([(1, 2**63, 7, 5, 2, 1, 0)], STOP).tobytes()), -1)
    assert [error.kind for error in capture.malformed] == [BlockKind.STOPS]


def test_what_a_reservation_cost() -> None:
    answer = reserved(7, 0, "1048577 5 1\nstop 1 1000 200 5\nstop 2 3000 2200 1\nstop 1 -1 x\nend\n", "")
    assert answer.distance == 1048577
    assert answer.stops.tolist() == [(1000, 200, 7, 5, 1, 1, 0), (3000, 2200, 7, 1, 1, 2, 0)]


@pytest.mark.parametrize(
    ("cause", "n", "text"),
    [
        (Lost.STACK_FAULT, 1, "1 stack was lost"),
        (Lost.STACK_FAULT, 2, "2 stacks were lost"),
        (Lost.MAPPINGS, 1, "1 mapping change was dropped: frames may be named in the wrong module"),
    ],
)
def test_lost_mappings_are_no_lost_stacks(tmp_path: Path, cause: Lost, n: int, text: str) -> None:
    found = measured(tmp_path, lost={cause: n}).coverage
    assert [reason for each in found if each.condition is Condition.STACKS for reason in each.reasons] == [
        text
    ]
