"""A measurement is complete where every condition is answered with yes; no loss, no refusal and no silence leads there."""

from __future__ import annotations

from pathlib import Path

import pytest

from memleak_android.host.analysis.coverage import cut_stacks
from memleak_android.host.analysis.pipeline import View
from memleak_android.host.profile.coverage import (
    Answer,
    Condition,
    Reason,
    findings,
    is_complete,
    is_sufficient,
)
from memleak_android.host.profile.losses import LOSS_CAUSES
from memleak_android.host.profile.profile import Profile, Verdict
from memleak_android.host.wire.blocks import Block, BlockKind, Lost
from memleak_android.host.wire.payloads import encode_gap, encode_text
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
    assert is_complete(profile.coverage) and profile.verdict is Verdict.OK


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
        assert strict.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize("condition", Condition)
@pytest.mark.parametrize("answer", [answer for answer in Answer if answer is not Answer.YES])
def test_no_gap_of_the_agent_leads_to_complete(condition: Condition, answer: Answer, tmp_path: Path) -> None:
    profile = measured(tmp_path, encode_gap(Reason(condition, answer, "it was not there")))
    assert answers(profile)[condition] is answer and not is_complete(profile.coverage)
    assert (profile.verdict is Verdict.OK) == (answer is Answer.TOLERATED)
    assert ("it was not there" in profile.notes) == (answer is not Answer.TOLERATED)


@pytest.mark.parametrize(
    "answered", ["", '"functions": []', '"programs": []', '"functions": 7, "programs": []']
)
def test_a_tracer_that_does_not_answer_is_unknown(answered: str, tmp_path: Path) -> None:
    profile = measured(tmp_path, session(f'"coverage": {{{answered}}}'))
    assert Answer.UNKNOWN in answers(profile).values() and profile.verdict is Verdict.INCOMPLETE


@pytest.mark.parametrize(
    "reason", ['["no", "x"]', '["unknown", "x"]', '["yes?", "x"]', '"x"', "[]", "null", '["no"]']
)
def test_a_reason_of_any_shape_counts_against_it(reason: str, tmp_path: Path) -> None:
    profile = measured(tmp_path, session(f'"coverage": {{"functions": [{reason}], "programs": []}}'))
    assert profile.verdict is Verdict.INCOMPLETE


def test_a_session_without_end_or_status(tmp_path: Path) -> None:
    first = [
        encode_text(BlockKind.SESSION, '{"unwind": "fp", "coverage": {"functions": [], "programs": []}}')
    ]
    whole = [hello(), *first, maps(MAPS), *ONE, status(**COUNTS), end()]
    for left_out in (len(whole) - 2, len(whole) - 1):
        blocks = [block for number, block in enumerate(whole) if number != left_out]
        profile = profile_of(write_recording(tmp_path / "a.memleak", blocks))
        assert profile.verdict is Verdict.INCOMPLETE, left_out
    assert profile_of(write_recording(tmp_path / "a.memleak", whole)).verdict is Verdict.OK


def test_a_report_of_cut_stacks_alone_is_not_ok(tmp_path: Path) -> None:
    """By CFI, of which a mapping without a file has none."""
    profile = measured(tmp_path, encode_text(BlockKind.SESSION, SESSION.replace('"fp"', '"cfi"')))
    assert answers(profile)[Condition.STACKS] is Answer.NO and profile.verdict is Verdict.INCOMPLETE
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


@pytest.mark.parametrize(
    ("more", "answer"),
    [("", Answer.UNKNOWN), ('"attached": true,', Answer.TOLERATED), ('"heap": false,', Answer.YES)],
)
def test_not_one_allocation(more: str, answer: Answer, tmp_path: Path) -> None:
    blocks = [session(f'{more} "coverage": {{"functions": [], "programs": []}}'), *snapshot(live_rows())]
    profile = profile_of(short_recording(tmp_path / "a.memleak", *blocks, counts=status()))
    assert answers(profile)[Condition.CALLS] is answer


def test_what_is_newer_than_this_program(tmp_path: Path) -> None:
    assert measured(tmp_path, Block(30, b"whatever")).verdict is Verdict.INCOMPLETE


def test_a_finished_recording_says_the_same(tmp_path: Path) -> None:
    gap = encode_gap(Reason(Condition.PROGRAMS, Answer.UNKNOWN, "who knows"))
    asked = session('"coverage": {"functions": [["no", "f() is not traced"]], "programs": []}')
    raw = short_recording(tmp_path / "a.memleak", *ONE, gap, asked, counts=status(**COUNTS))
    finished = tmp_path / "b.memleak"
    profile = profile_of(raw, finished=finished)
    assert profile_of(finished).coverage == profile.coverage


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
