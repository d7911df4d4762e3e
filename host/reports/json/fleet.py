"""fleet.json: a FleetProfile as `memleak-android/fleet/1`; its JSON Schema is fleet.schema.json."""

from typing import Annotated, Any, Literal, TextIO

import msgspec
from msgspec import NODEFAULT, Meta

from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.field_types import Count
from memleak_android.host.profile.fleet_profile import FleetProfile
from memleak_android.host.profile.frame import Frame
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.json.schema import Codec, Field, Member, Schema

SCHEMA = "memleak-android/fleet/1"


def write(fleet: FleetProfile, stream: TextIO, options: ReportOptions) -> None:
    """Write one JSON object, indented, with a final newline. All sites, whatever options.top says."""
    encoded = msgspec.json.encode(FLEET.form(FleetProfile).write(fleet))
    stream.write(msgspec.json.format(encoded, indent=1).decode() + "\n")


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of fleet.json, as shipped in fleet.schema.json."""
    return FLEET.json_schema(FleetProfile, SCHEMA)


class FleetFrame(msgspec.Struct, frozen=True, omit_defaults=True):
    module: str
    function: str
    build_id: str = ""
    vaddr: str = ""
    file: str | None = None
    line: int | None = None


def _frame(frame: Frame) -> FleetFrame:
    vaddr = "" if frame.function else f"{frame.vaddr:#x}"
    file = None if frame.file is None else bounded(frame.file)
    return FleetFrame(bounded(frame.module), bounded(frame.function), frame.build_id, vaddr, file, frame.line)


def _with_head(schema: Schema, recordings: Member) -> Member:
    """The schema's name and the number of counted recordings come first."""
    name = Field("schema", Literal["memleak-android/fleet/1"], NODEFAULT, "counted", lambda counted: SCHEMA)
    answers = Annotated[dict[AnswerState, Count], Meta(description="recordings that count, by their answer")]
    head = [Field("answers", answers, NODEFAULT, "answers"), Field("counted", Count, NODEFAULT, "counted")]
    return recordings._replace(fields=[name, *head, *recordings.fields])


FLEET = Schema(
    codecs={
        str: lambda schema: Codec(str, bounded),
        Frame: lambda schema: Codec(FleetFrame, _frame),
        tuple[tuple[str, int], ...]: lambda schema: Codec(dict[str, Count], dict),
    },
    names={},
    special={
        (FleetProfile, "recordings"): _with_head,
        (FleetProfile, "mean"): lambda schema, mean: Member([]),
    },
)
