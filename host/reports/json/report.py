"""report.json: a Profile as `memleak-android/report/2`, written, read back, and its JSON Schema.

Its fields are those of the dataclasses in host/profile, but for the special ones here. Fields are only added within a
major. report/1 is read too.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter, methodcaller
from typing import Annotated, Any, Literal, TextIO, get_type_hints

import msgspec
from msgspec import NODEFAULT, UNSET, Meta, UnsetType

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.answer import Answer, AnswerState, Place
from memleak_android.host.profile.field_types import HEX, RAW, Count
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.gate_result import Gate
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.profile import (
    CallSite,
    LeakKind,
    LeakSum,
    Measurement,
    MemoryUse,
    ModuleSummary,
    Origin,
    Profile,
    Target,
    ThreadStop,
    Unwinding,
)
from memleak_android.host.profile.site_id import NAME_MAX
from memleak_android.host.profile.sort_orders import growth_rate
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.json.schema import Codec, Convert, Field, Member, Schema
from memleak_android.host.reports.text.answer import answer_text
from memleak_android.host.reports.text.stops import StopSum
from memleak_android.unwind.trace import TraceEnd

SCHEMA = "memleak-android/report/2"
SCHEMA_1 = "memleak-android/report/1"

_NO_SITES = '\n "sites": []'  # in the JSON of a report without its sites; line feeds within names are escaped
_FRAMES_KEPT_MAX = 1 << 17
_FRAMES_MAX = 100_000  # 300 bytes each: beyond them, sites have the innermost ones only
_INNERMOST = 8
_OTHER_VERSION = re.compile(rb'"schema": ?"(memleak-android/report/\d+)"')
_ERROR_MAX = 200  # characters of an error that quotes the file
_SURROGATE = re.compile("[\ud800-\udfff]")
_U64_MAX = 2**64 - 1

VERDICT = "state of the answer; null: there is none (the mean of several recordings)"
ANSWER = "null: as verdict"
LINE = "the first line of all reports"
OTHERS = "of the other processes, those that held most"


def write(profile: Profile, stream: TextIO, options: ReportOptions) -> None:
    """Write one JSON object, a line for each frame, with a final newline. All sites, whatever options.top says.

    Of an import of pandas, 4,600,000 frames would take 1.4 GB. Sites are written one by one: all of them at once, as JSON or as objects to be encoded, can be gigabytes.
    """
    report = REPORT.form(Profile).write(profile)
    report.answer = answer_object(profile)
    encoded = msgspec.json.encode(report)
    before, mark, after = msgspec.json.format(encoded, indent=1).decode().partition(_NO_SITES)
    stream.write(before + mark.removesuffix("]"))
    show_allocs = options.show_allocs and not options.combined_only
    frames, form = _FrameLines(), REPORT.form(CallSite)
    for number, site in enumerate(_shortened(sorted(profile.sites, key=lambda site: -site.inuse_space))):
        struct = form.write(site)
        struct.frames = msgspec.Raw(b"[\n   %b]" % b",\n   ".join(map(frames.of, site.frames)))
        struct.blocks = (struct.blocks or []) if show_allocs else UNSET
        begin = ",\n  " if number else "\n  "
        stream.write(begin + msgspec.json.encode(struct).decode())
    stream.write(("\n ]" if profile.sites else "]") + after + "\n")


def _shortened(sites: Sequence[CallSite]) -> Iterator[CallSite]:
    """Whole stacks of those that grow fastest and then hold most, as far as _FRAMES_MAX allows."""
    left, whole = _FRAMES_MAX, set[int]()
    for site in sorted(sites, key=growth_rate, reverse=True):
        if (left := left - len(site.frames)) < 0:
            break
        whole.add(id(site))
    for site in sites:
        n_left_out = 0 if id(site) in whole else max(0, len(site.frames) - _INNERMOST)
        yield (
            replace(site, frames=site.frames[:_INNERMOST], frames_left_out=n_left_out) if n_left_out else site
        )


def answer_object(profile: Profile) -> Any:
    """`answer`, with the first line of all reports; None without an answer."""
    if profile.answer is None:
        return None
    answer = REPORT.form(Answer).write(profile.answer)
    answer.line = _utf8(answer_text(profile))
    return answer


class _FrameLines:
    """Frames as JSON. Sites share Frame objects: each is encoded once, as far as _FRAMES_KEPT_MAX allows."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}  # by identity: the profile keeps them alive
        self._write = REPORT.form(Frame).write

    def of(self, frame: Frame) -> bytes:
        line = self._known.get(id(frame))
        if line is None:
            if len(self._known) == _FRAMES_KEPT_MAX:
                self._known.clear()
            line = self._known[id(frame)] = msgspec.json.encode(self._write(frame))
        return line


def read_report(data: bytes, name: str) -> Profile:
    """Read a report.json or a report/1; fields of later minor versions are ignored. Raises UsageError naming `name`.

    Names of functions, modules and files stay as they are, for the ids; reports escape them. All other text is
    escaped here: it is not expected to be hostile elsewhere.
    """
    try:
        is_first = msgspec.json.decode(data, type=_Head).schema == SCHEMA_1
        form = (_REPORT_1 if is_first else REPORT).form(Profile)
        report = msgspec.json.decode(data, type=form.struct)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        other = _OTHER_VERSION.search(data[:_ERROR_MAX])
        if other and (written := other[1].decode()) != SCHEMA:
            message = f"{name} was written by another version ({written}; this one reads {SCHEMA.rpartition('/')[2]})"
            raise UsageError(
                message, "read it by that version, or make it anew from the recording"
            ) from error
        message = f"{name} is not a {SCHEMA} file: {bounded(str(error), _ERROR_MAX)}"
        raise UsageError(message, "write one with --json FILE") from error
    profile: Profile = form.read(report)
    return profile


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of report.json, as shipped in report.schema.json."""
    return REPORT.json_schema(Profile, SCHEMA)


def _utf8(text: str) -> str:
    """Replace surrogates (bytes of a path that are not UTF-8, PEP 383), which JSON cannot hold. At most NAME_MAX long."""
    if text.isascii() and len(text) <= NAME_MAX:
        return text
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text[:NAME_MAX])


def _address(text: str) -> int:
    return min(int(text, 16), _U64_MAX)


class MemoryPart(msgspec.Struct, frozen=True):
    name: str
    resident: Count
    proportional: Annotated[int, Meta(ge=0, description="shared pages divided among their users")]


def _memory_parts(schema: Schema) -> Codec:
    return Codec(
        list[MemoryPart],
        lambda parts: [MemoryPart(*part) for part in parts],
        lambda parts: tuple((bounded(part.name), part.resident, part.proportional) for part in parts),
    )


class LeakSize(msgspec.Struct, frozen=True):
    space: Count
    objects: Count


def _leaks(schema: Schema) -> Codec:
    return Codec(
        dict[LeakKind, LeakSize],
        lambda leaks: {leak.kind: LeakSize(leak.space, leak.objects) for leak in leaks},
        lambda leaks: tuple(LeakSum(kind, size.space, size.objects) for kind, size in leaks.items()),
    )


def _labels(schema: Schema) -> Codec:
    return Codec(
        dict[str, str],
        lambda labels: {_utf8(name): _utf8(value) for name, value in labels},
        lambda labels: tuple((bounded(name), bounded(value)) for name, value in labels.items()),
    )


def _if_any(write: Convert) -> Convert:
    """`write`, but an absent or empty value is left out."""
    return lambda value: write(value) if value else UNSET


class _Head(msgspec.Struct):
    schema: str = ""


def _with_head(schema: Schema, measurement: Member) -> Member:
    """The answer first."""
    mark = Literal["memleak-android/report/2"]
    answer = schema.codec(Annotated[Answer | None, Meta(description=ANSWER)]).type
    head = [
        Field("schema", mark, NODEFAULT, "measurement", lambda value: SCHEMA),
        Field(
            "verdict", Annotated[AnswerState | None, Meta(description=VERDICT)], NODEFAULT, "answer", _state
        ),
        Field("answer", answer, NODEFAULT, "answer", lambda answer: None),  # write() fills it
    ]
    return measurement._replace(fields=[*head, *measurement.fields])


def _state(answer: Answer | None) -> AnswerState | None:
    return answer.state if answer is not None else None


def _in_head(schema: Schema, answer: Member) -> Member:
    codec = schema.codec(Answer)
    return Member([], read=lambda answer: None if answer is None else codec.read(answer))


def _with_line(schema: Schema, state: Member) -> Member:
    """write() fills it."""
    line = Field("line", Annotated[str, Meta(description=LINE)], NODEFAULT, "why")
    return state._replace(fields=[*state.fields, line])


def _with_result(schema: Schema, culprits: Member) -> Member:
    result = Annotated[bool, Meta(description="a limit was exceeded")]
    return culprits._replace(
        fields=[*culprits.fields, Field("is_exceeded", result, NODEFAULT, "is_exceeded")]
    )


def _measurement_of_1(schema: Schema, measurement: Member) -> Member:
    """report/1 had one field for the limit (leaks) and the measurement (incomplete)."""

    def read(struct: Any) -> Measurement:
        is_incomplete = struct.gate.is_incomplete if struct.gate else struct.verdict == "incomplete"
        return Measurement.INCOMPLETE if is_incomplete else Measurement.COMPLETE

    verdict = Field("verdict", Literal["ok", "leaks", "incomplete"], NODEFAULT, "measurement")
    return Member([verdict], read_struct=read)


def _result_of_1(schema: Schema, culprits: Member) -> Member:
    return culprits._replace(fields=[*culprits.fields, Field("is_incomplete", bool, NODEFAULT, "culprits")])


def _filled_later(schema: Schema, listed: Member) -> Member:
    """An empty list, which write() fills."""
    return listed._replace(fields=[listed.fields[0]._replace(write=lambda values: [])])


def _file(schema: Schema, file: Member) -> Member:
    return file._replace(fields=[file.fields[0]._replace(write=_if_any(_utf8))])


def _origin(schema: Schema, origin: Member) -> Member:
    """Its fields are fields of the target."""
    form = schema.form(Origin)
    fields = [field._replace(source=f"origin.{field.source}") for field in form.fields]
    return Member(fields, read_struct=form.read)


def _ends(schema: Schema, ends: Member) -> Member:
    """A field for each TraceEnd."""
    names = [end.name for end in TraceEnd]
    fields = [Field(name, Count, 0, "ends", methodcaller("get", name, 0)) for name in names]
    return Member(
        fields, read_struct=lambda struct: {name: n for name in names if (n := getattr(struct, name))}
    )


def _growth(schema: Schema, growth: Member) -> Member:
    """The rate is a field beside it."""
    name = growth.fields[0].name
    rate, codec = get_type_hints(Growth, include_extras=True)["bytes_per_s"], schema.codec(Growth)
    beside = f"{name}_bytes_per_s"
    field = Field(beside, rate | UnsetType, UNSET, name, _if_any(attrgetter("bytes_per_s")))

    def read(struct: Any) -> Growth | None:
        if getattr(struct, name) is UNSET or getattr(struct, beside) is UNSET:
            return None
        found: Growth = codec.read(getattr(struct, name))
        return replace(found, bytes_per_s=getattr(struct, beside))

    return Member([field, *growth.fields], read_struct=read)


def _taken_at(schema: Schema, wall_clock_s: Member) -> Member:
    hint = Annotated[str, Meta(description="ISO 8601, UTC")] | UnsetType
    return Member([Field("taken_at", hint, UNSET, "wall_clock_s", _iso_time)], read_struct=_seconds)


def _iso_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _seconds(struct: Any) -> float:
    """0.0 if it is not a time."""
    try:
        return datetime.fromisoformat(struct.taken_at or "").timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _memory(schema: Schema, memory: Member) -> Member:
    """The target's, and a list of the others'."""
    use = schema.codec(MemoryUse)
    others = Annotated[list[use.type], Meta(description=OTHERS)]  # type: ignore[name-defined]
    fields = [
        Field("memory", use.type | UnsetType, UNSET, "memory", _if_any(lambda uses: use.write(uses[0]))),
        Field(
            "memory_of_others",
            others | UnsetType,
            UNSET,
            "memory",
            lambda uses: [*map(use.write, uses[1:])] or UNSET,
        ),
    ]

    def read(struct: Any) -> tuple[MemoryUse, ...]:
        found = [struct.memory, *(struct.memory_of_others or ())] if struct.memory else []
        return tuple(map(use.read, found))

    return Member(fields, read_struct=read)


@dataclass(frozen=True, slots=True)
class Stops:
    """all_threads: when all were stopped. caller: the thread that made our calls."""

    each: tuple[ThreadStop, ...]
    all_threads: StopSum | None = None
    caller: StopSum | None = None


def _stops(schema: Schema, stops: Member) -> Member:
    """One by one, and summed up."""
    codec = schema.codec(Annotated[Stops, Meta(description="of a process that was attached while it ran")])

    def write(each: tuple[ThreadStop, ...]) -> Any:
        return codec.write(Stops(each, StopSum.of(each, False), StopSum.of(each, True)))

    field = Field("stops", codec.type | UnsetType, UNSET, "stops", _if_any(write))
    return Member([field], lambda stops: codec.read(stops).each if stops else ())


_CODECS: dict[Any, Callable[[Schema], Codec]] = {
    str: lambda schema: Codec(str, _utf8, bounded),
    RAW: lambda schema: Codec(str, _utf8),
    HEX: lambda schema: Codec(Annotated[str, Meta(pattern="^0x[0-9a-f]+$")], hex, _address),
    tuple[LeakSum, ...]: _leaks,
    tuple[tuple[str, str], ...]: _labels,
    tuple[tuple[str, int, int], ...]: _memory_parts,
}
_NAMES = {(Profile, "modules"): "symbols", (ModuleSummary, "symbols"): "class"}
_SPECIAL: dict[tuple[type, str], Callable[[Schema, Member], Member]] = {
    (Profile, "sites"): _filled_later,
    (Profile, "wall_clock_s"): _taken_at,
    (Profile, "memory"): _memory,
    (Profile, "stops"): _stops,
    (CallSite, "frames"): _filled_later,
    (CallSite, "growth"): _growth,
    (Place, "growth"): _growth,
    (Answer, "growth"): _growth,
    (Profile, "heap_growth"): _growth,
    (Growth, "bytes_per_s"): lambda schema, rate: Member([], read_struct=lambda struct: 0.0),
    (Frame, "file"): _file,
    (Target, "origin"): _origin,
    (Unwinding, "ends"): _ends,
    (Unwinding, "fp_agreement"): lambda schema, agreement: agreement._replace(read=None),
}
_SPECIAL_OF_1 = {(Profile, "measurement"): _measurement_of_1, (Gate, "culprits"): _result_of_1}
_SPECIAL_OF_2 = {
    (Profile, "measurement"): _with_head,
    (Profile, "answer"): _in_head,
    (Answer, "state"): _with_line,
    (Gate, "culprits"): _with_result,
}
_NAMES_OF_1 = {(Profile, "growth_span"): "growth"}
REPORT = Schema(_CODECS, _NAMES, _SPECIAL | _SPECIAL_OF_2)
_REPORT_1 = Schema(_CODECS, _NAMES | _NAMES_OF_1, _SPECIAL | _SPECIAL_OF_1)
