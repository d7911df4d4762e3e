"""Whether a measurement is complete: a closed list of conditions, each of which has to be answered.

A condition that nothing answers is unknown, never met. Who answers: host/analysis/coverage.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from msgspec import Meta


class Condition(StrEnum):
    """Sent by their values: by the agent in GAP blocks, and in the recording's SESSION."""

    SESSION = "session"  # it began, went on and ended as asked
    FUNCTIONS = "functions"  # every function of every family is traced
    PROGRAMS = "programs"  # in every program and library of the target
    CALLS = "calls"  # no call was missed
    STACKS = "stacks"  # every held block has its whole stack
    RECORD = "record"  # what was sent has arrived, and could be read
    BALANCE = "balance"  # what the process grew by, by the kernel's figures, has an owner


class Answer(StrEnum):
    """The better first. `tolerated`: not met, within what the user allows (--max-lost, processes left out by name)."""

    YES = "yes"
    TOLERATED = "tolerated"
    UNKNOWN = "unknown"
    NO = "no"


_RANKS = {answer: rank for rank, answer in enumerate(Answer)}
GOOD = (Answer.YES, Answer.TOLERATED)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a condition is not met, or not known to be."""

    condition: Condition
    answer: Answer
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to a condition: the worst of its reasons."""

    condition: Condition
    answer: Answer
    reasons: Annotated[tuple[str, ...], Meta(description="the worst first; none for yes")] = ()


COVERAGE = "whether the measurement is complete: the answer to each condition"
Coverage = Annotated[tuple[Finding, ...], Meta(description=COVERAGE)]


def findings(answered: Iterable[Condition], reasons: Sequence[Reason]) -> tuple[Finding, ...]:
    """One for each condition. answered: the conditions that were looked at: they are met where no reason says otherwise."""
    looked_at = set(answered)
    return tuple(_finding(condition, condition in looked_at, reasons) for condition in Condition)


def _finding(condition: Condition, is_answered: bool, reasons: Sequence[Reason]) -> Finding:
    own = [reason for reason in reasons if reason.condition is condition]
    if not is_answered:
        own.append(Reason(condition, Answer.UNKNOWN, UNANSWERED[condition]))
    own.sort(key=lambda reason: -_RANKS[reason.answer])
    worst = own[0].answer if own else Answer.YES
    return Finding(condition, worst, tuple(dict.fromkeys(reason.text for reason in own)))


UNANSWERED = {
    Condition.SESSION: "it is not known whether the session went as asked",
    Condition.FUNCTIONS: "it is not known whether every function is traced",
    Condition.PROGRAMS: "it is not known whether every program and library was seen",
    Condition.CALLS: "it is not known whether calls were missed",
    Condition.STACKS: "it is not known whether the stacks are whole",
    Condition.RECORD: "it is not known whether everything has arrived",
    Condition.BALANCE: "it is not known whether the process grew by more",
}


def is_complete(found: Sequence[Finding]) -> bool:
    """Whether every condition of the list is met."""
    return {one.condition for one in found if one.answer is Answer.YES} == set(Condition)


def is_sufficient(found: Sequence[Finding]) -> bool:
    """Whether every condition is met, or missed within what the user allows."""
    good = {one.condition for one in found if one.answer in GOOD}
    return good == set(Condition)


def what_lacks(found: Sequence[Finding]) -> list[str]:
    """The reasons of all conditions that are not met, nor missed within what the user allows: the worst first."""
    ranked = sorted(found, key=lambda one: -_RANKS[one.answer])
    return [text for one in ranked if one.answer not in GOOD for text in one.reasons]


def what_is_tolerated(found: Sequence[Finding]) -> list[str]:
    return [text for one in found if one.answer is Answer.TOLERATED for text in one.reasons]
