"""The SESSION block: a JSON object about the session, decoded once into typed groups.

A recording may come from a hostile writer. A field of the wrong type counts as missing, and unknown fields are kept for
the recording that is written from this one.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from memleak_android.host.profile.coverage import Answer, Condition, Reason
from memleak_android.host.profile.field_types import BYTE, common_unit
from memleak_android.host.wire.blocks import FIRST_PAIR_FUNCTION, FUNCTIONS_MAX

_NOUN = re.compile(r"[a-z][a-z -]{0,29}")
_LIMITS_MAX = 64  # of the target's memory, that are read

LABELS_MAX = 32


@dataclass(frozen=True, slots=True)
class SessionTarget:
    """Target of a session. pid: 0 = unknown. only_pids: the processes that count; None = all recorded."""

    command: str
    pid: int
    package: str
    serial: str
    is_whole_machine: bool
    is_attached: bool
    only_pids: tuple[int, ...] | None

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Self:
        return cls(
            command=str(fields.get("command", "")),
            pid=_number(fields.get("pid")),
            package=str(fields.get("package") or ""),
            serial=str(fields.get("serial") or ""),
            is_whole_machine=fields.get("whole_machine") is True,
            is_attached=bool(fields.get("attached")),
            only_pids=_numbers(fields.get("only_pids")),
        )


@dataclass(frozen=True, slots=True)
class SessionOrigin:
    """The device, the app's version and the user's labels, as they were recorded. "" and 0 mean unknown."""

    model: str
    release: str
    api_level: int
    abi: str
    version: str
    version_code: int
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Self:
        labels = list(_dict(fields.get("labels")).items())[:LABELS_MAX]
        return cls(
            model=_text(fields.get("model")),
            release=_text(fields.get("release")),
            api_level=_count(fields.get("api_level")),
            abi=_text(fields.get("abi")),
            version=_text(fields.get("version")),
            version_code=_count(fields.get("version_code")),
            labels=tuple((_text(name), _text(value)) for name, value in labels),
        )


@dataclass(frozen=True, slots=True)
class SessionTracing:
    """How it was measured.

    max_frames: of a stack that is not folded. sample_bytes: mean distance of the samples, 0 = every allocation.
    pair_functions: (pair, function) of --pairs, by function number. pair_units: of pairs that are counted. allocator: path of the file with the probes.
    lists_regions: also those of the mmap family that do not grow.
    """

    tracer: str
    unwind_mode: str
    max_frames: int
    sample_bytes: int
    is_every_process: bool
    is_kernel_of_command: bool
    expects_missing_frees: bool
    pair_functions: tuple[tuple[str, str], ...]
    pair_units: Mapping[str, str]
    allocator: object
    traces_heap: bool
    lists_regions: bool

    @property
    def unit(self) -> str:
        """Of the sums over all that is traced."""
        pairs = () if self.traces_heap else {pair for pair, _ in self.pair_functions}
        return common_unit(self.pair_units.get(pair, BYTE) for pair in pairs)

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Self:
        options = _dict(fields.get("options"))
        pairs = _dict(options.get("pairs"))
        names = _list(pairs.get("names"))[: FUNCTIONS_MAX - FIRST_PAIR_FUNCTION]
        return cls(
            tracer=str(fields.get("tracer", "unknown")),
            unwind_mode=str(fields.get("unwind", "cfi")),
            max_frames=max(64, _number(options.get("max_frames")) or 1024),
            sample_bytes=_number(fields.get("sample_bytes")),
            is_every_process=fields.get("every_process") is True,
            is_kernel_of_command=bool(options.get("kernel") and options.get("command")),
            expects_missing_frees=fields.get("missing_free_expected") is True,
            pair_functions=tuple(
                (str(row[0]), str(row[1])) for row in names if isinstance(row, list) and len(row) == 2
            ),
            pair_units={
                name: noun for name, noun in _dict(pairs.get("units")).items() if _NOUN.fullmatch(_text(noun))
            },
            allocator=_dict(fields.get("about")).get("allocator"),
            traces_heap=fields.get("heap") is not False,
            lists_regions=options.get("mmap") is True,
        )


@dataclass(frozen=True, slots=True)
class SessionFindings:
    """The host's notes during and after the session.

    run_ends_ns: ends of the runs of --scenario; None = no scenario. marks: name and time. memory: one object for each
    process that was examined, unchecked. balances: the target's first; fp_agreement: both unchecked. limits: of the target's memory: name, limit, used.
    answered: conditions of a complete measurement that were looked at; reasons: what was found against them.
    """

    answered: frozenset[Condition]
    reasons: tuple[Reason, ...]
    left_out: tuple[str, ...]
    has_scenario: bool
    run_ends_ns: tuple[int, ...] | None
    marks: tuple[tuple[str, int], ...]
    memory: tuple[object, ...]
    balances: tuple[object, ...]
    process_names: Mapping[int, str]
    process_ends: Mapping[int, int]
    highest_level: int
    peak_bound: int | None
    fp_agreement: object
    limits: tuple[tuple[str, int, int], ...]

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Self:
        scenario, bound = fields.get("scenario"), fields.get("peak_bound")
        is_bound = isinstance(bound, int) and not isinstance(bound, bool) and 0 <= bound < 2**62
        names = _dict(fields.get("process_names")).items()
        coverage = _dict(fields.get("coverage"))
        return cls(
            answered=frozenset(
                condition for condition in Condition if isinstance(coverage.get(condition), list)
            ),
            reasons=(
                *_reasons(coverage),
                *(_reason(Condition.SESSION, ["no", text]) for text in _list(fields.get("missing"))),
            ),
            left_out=tuple(map(str, _list(fields.get("left_out")))),
            has_scenario="scenario" in fields,
            run_ends_ns=(_numbers(scenario.get("ends_ns")) or ()) if isinstance(scenario, dict) else None,
            marks=tuple(
                (str(mark[0]), mark[1])
                for mark in _list(fields.get("marks"))
                if isinstance(mark, (list, tuple)) and len(mark) == 2 and isinstance(mark[1], int)
            ),
            memory=(fields.get("memory"), *_list(fields.get("memory_of_others"))),
            balances=(fields.get("balance"), *_dict(fields.get("balance_of_others")).values()),
            process_names={
                int(pid): str(name) for pid, name in names if str(pid).isdecimal() and len(pid) < 20
            },
            process_ends={
                int(pid): end_ns
                for pid, end_ns in _dict(fields.get("process_ends")).items()
                if str(pid).isdecimal() and len(pid) < 20 and isinstance(end_ns, int)
            },
            highest_level=_number(fields.get("highest_level")),
            peak_bound=bound if is_bound else None,
            fp_agreement=fields.get("fp_agreement"),
            limits=tuple(_limits(_list(fields.get("limits")))),
        )


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The decoded SESSION block. fields: the JSON object as it was recorded, unknown fields included.

    `session | fields` is the session with these fields replaced.
    """

    target: SessionTarget
    origin: SessionOrigin
    tracing: SessionTracing
    findings: SessionFindings
    fields: Mapping[str, Any] = field(repr=False)

    @classmethod
    def decode(cls, fields: Mapping[str, Any]) -> Self:
        return cls(
            SessionTarget.decode(fields),
            SessionOrigin.decode(fields),
            SessionTracing.decode(fields),
            SessionFindings.decode(fields),
            fields,
        )

    def __or__(self, fields: Mapping[str, Any]) -> Self:
        return self.decode({**self.fields, **fields})


def coverage_field(answered: Mapping[Condition, Sequence[Reason]]) -> dict[str, list[list[str]]]:
    """The field `coverage` of SESSION: by condition, [answer, text] of each reason."""
    return {
        condition.value: [[one.answer.value, one.text] for one in reasons]
        for condition, reasons in answered.items()
    }


def _limits(rows: Sequence[object]) -> Iterator[tuple[str, int, int]]:
    for row in rows[:_LIMITS_MAX]:
        match row:
            case [str(name), int(limit), int(used)] if 0 <= limit < 2**63 and 0 <= used < 2**63:
                yield name, limit, used


def _reasons(coverage: Mapping[str, Any]) -> Iterator[Reason]:
    for condition in Condition:
        yield from (_reason(condition, one) for one in _list(coverage.get(condition)))


def _reason(condition: Condition, fields: object) -> Reason:
    """What is not [answer, text] counts as a reason that nobody can read."""
    match fields:
        case [str(answer), text] if answer in set(Answer):
            return Reason(condition, Answer(answer), str(text))
    return Reason(condition, Answer.UNKNOWN, "the recording's answer is malformed")


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _dict(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _numbers(value: object) -> tuple[int, ...] | None:
    """None where it is not a list."""
    return tuple(each for each in value if isinstance(each, int)) if isinstance(value, list) else None
