"""report.json: its schema, what is written, reading it back as the Profile that it was written from."""

import json
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

import jsonschema
import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.answer import Answer, AnswerState
from memleak_android.host.profile.gate_result import Gate, SuppressionUse
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend
from memleak_android.host.profile.profile import (
    Instant,
    Measurement,
    Origin,
    Profile,
    SiteSum,
    StopMoment,
    ThreadStop,
    ThreadSum,
)
from memleak_android.host.profile.site_id import NAME_MAX, site_id
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.reports.json import report as report_json
from tests.support.builders.profiles import DECODE, empty_profile, profile
from tests.support.goldens import assert_golden
from tests.support.written import read_back, written, written_text

json_of = partial(written_text, "json")


def shipped_schema() -> Any:
    return json.loads(
        resources.files("memleak_android.host.reports.json").joinpath("report.schema.json").read_text()
    )


def test_whole_report() -> None:
    assert_golden(json_of(profile()), "report.json")


def test_shipped_schema_is_current() -> None:
    text = json.dumps(report_json.json_schema(), indent=1) + "\n"
    assert_golden(text, "../../../host/reports/json/report.schema.json")


STOPS = (
    ThreadStop(StopMoment.ATTACH, False, 31, 3, 7),
    ThreadStop(StopMoment.ATTACH, True, 101, 1, 7),
    ThreadStop(StopMoment.DETACH, False, 11, 3, 7),
    ThreadStop(StopMoment.DETACH, False, 13, 3, 7),
)


def test_stops_one_by_one_and_summed_up() -> None:
    stops = json.loads(json_of(profile(stops=STOPS)))["stops"]
    assert stops["all_threads"] == {"stops": 3, "median_ns": 13, "max_ns": 31}
    assert stops["caller"] == {"stops": 1, "median_ns": 101, "max_ns": 101}
    assert [one["duration_ns"] for one in stops["each"]] == [31, 101, 11, 13]
    assert "caller" not in json.loads(json_of(profile(stops=STOPS[2:])))["stops"]
    assert "stops" not in json.loads(json_of(profile()))


ANSWERED = profile(stops=STOPS, answer=Answer(AnswerState.NOT_GROWING))


@pytest.mark.parametrize("made", [profile(), empty_profile(), ANSWERED])
@pytest.mark.parametrize("show_allocs", [False, True])
def test_reports_are_valid(made: Profile, show_allocs: bool) -> None:
    jsonschema.Draft202012Validator.check_schema(shipped_schema())
    jsonschema.validate(json.loads(json_of(made, show_allocs=show_allocs)), shipped_schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "memleak-android/report/3"),
        (("verdict",), "fine"),
        (("measurement",), "ok"),
        (("totals", "inuse_space"), None),
        (("sites", 0, "kind"), "pair:"),
        (("sites", 0, "frames", 0, "address"), "7f00"),
        (("duration_ns",), -1),
    ],
)
def test_wrong_values_are_seen_by_schema_and_reader(path: tuple[str | int, ...], value: object) -> None:
    report = json.loads(json_of(profile()))
    part = report
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, shipped_schema())
    with pytest.raises(UsageError):
        report_json.read_report(json.dumps(report).encode(), "old.json")


def test_the_answer_is_first_and_the_measurement_apart() -> None:
    answer = Answer(AnswerState.CANNOT_TELL, "who knows")
    report = json.loads(json_of(profile(answer=answer)))
    assert list(report)[:4] == ["schema", "verdict", "answer", "measurement"]
    assert (report["verdict"], report["measurement"]) == ("cannot_tell", "incomplete")
    line = "CANNOT TELL  ./server --port 80 (pid 4711): who knows"
    assert report["answer"] == {"state": "cannot_tell", "line": line, "why": "who knows"}
    without = json.loads(json_of(profile()))
    assert without["verdict"] is without["answer"] is None, "of several recordings"


def test_a_line_for_each_frame() -> None:
    made = profile()
    lines = json_of(made).splitlines()
    starts = [line for line in lines if line.startswith('   {"address":')]
    assert len(starts) == sum(len(site.frames) for site in made.sites)
    assert len(lines) < len(starts) + 3 * len(made.sites) + 120


def test_names_that_look_like_indices_of_sites_and_frames() -> None:
    looks = ('"frames":[]', '\n "sites": []', "]}", '\\"frames":[]')
    frames = tuple(replace(DECODE.frames[0], function=name, module=name, file=name) for name in looks)
    made = profile(sites=(replace(DECODE, frames=frames, suppressed_by=looks[0]),), notes=looks)
    report = json.loads(json_of(made))
    assert [frame["function"] for frame in report["sites"][0]["frames"]] == list(looks)
    assert report["notes"] == list(looks)


def test_more_indices_than_are_kept_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json_of(profile())
    monkeypatch.setattr(report_json, "_FRAMES_KEPT_MAX", 1)
    assert json_of(profile()) == whole


def test_many_frames_are_those_of_the_stacks_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_json, "_FRAMES_MAX", 17)
    monkeypatch.setattr(report_json, "_INNERMOST", 1)
    large, small, grown = (
        replace(DECODE, frames=frames, id=site_id(frames), inuse_space=space)
        for frames, space in ((DECODE.frames * 2, 9000), (DECODE.frames[::-1], 10), (DECODE.frames[1:], 5))
    )
    grown = replace(grown, growth=Growth(Trend.GROWS, 9.0, 8.0, 10.0, 0, 10))
    back = read_back(replace(profile(), sites=(large, small, grown))).sites
    assert [(site.id, site.frames, site.frames_left_out) for site in back] == [
        (large.id, large.frames, 0),
        (small.id, small.frames[:1], len(small.frames) - 1),
        (grown.id, grown.frames, 0),
    ]


def test_fields_of_a_later_version_are_ignored() -> None:
    report = json.loads(json_of(profile()))
    report["new"] = report["sites"][0]["new"] = report["sites"][0]["frames"][0]["new"] = {"a": 1}
    report_json.read_report(json.dumps(report).encode(), "later.json")
    jsonschema.validate(report, shipped_schema())


def test_files_that_are_not_reports_get_one_line() -> None:
    hostile = json.dumps({"schema": "\x1b[2J" + "x" * 100_000}).encode()
    for data in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, hostile):
        with pytest.raises(UsageError) as caught:
            report_json.read_report(data, "old.json")
        line = str(caught.value)
        assert line.startswith("old.json is not a memleak-android/report/2 file: ")
        assert line.endswith("; write one with --json FILE")
        assert "\n" not in line and "\x1b" not in line and len(line) < 400


def test_unknown_figures_are_null_never_0() -> None:
    made = profile()
    made = replace(made, totals=replace(made.totals, alloc_space=None, alloc_objects=None))
    report = json.loads(json_of(made))
    assert report["totals"]["alloc_space"] is None
    assert report["totals"]["alloc_objects"] is None


ORIGIN = Origin("Pixel 6", "14", 34, "arm64-v8a", "2.1-beta", 210, (("farm", "north"), ("seed", "7")))
WITH_ALL = replace(
    profile(),
    target=replace(profile().target, origin=ORIGIN),
    threads=(ThreadSum(4711, 4712, 101_211, 29),),
    timeline=(Instant(5, 7, 11, (SiteSum("ab", 7, 11),)), Instant(13, 17, 19, ())),
    sites=(replace(DECODE, growth=Growth(Trend.GROWS, 23.5, 19.25, 29.0, 7, 11)),),
    growth_span=GrowthSpan(5, 7, 11, 13),
    gate=Gate(5, None, 7, 11, ("ab",), "old.json", (SuppressionUse("a*", 13, 17),)),
    stops=(
        ThreadStop(StopMoment.ATTACH, False, 7_919, 3, 4711),
        ThreadStop(StopMoment.DETACH, True, 104_729, 1, 4711),
    ),
)


@pytest.mark.parametrize("made", [profile(), empty_profile(), WITH_ALL])
def test_everything_comes_back(made: Profile) -> None:
    by_size = sorted(made.sites, key=lambda site: -site.inuse_space)
    expected = replace(made, sites=tuple(replace(site, id=site_id(site.frames)) for site in by_size))
    assert read_back(made, show_allocs=True) == expected


ANSWER = Answer(AnswerState.LEAKING, growth=Growth(Trend.GROWS, 23.5, 19.25, 29.0, 7, 11), growing=2)


@pytest.mark.parametrize("answer", [None, ANSWER])
@pytest.mark.parametrize(
    ("verdict", "is_incomplete", "measurement"),
    [
        ("ok", None, Measurement.COMPLETE),
        ("incomplete", None, Measurement.INCOMPLETE),
        ("ok", False, Measurement.COMPLETE),
        ("leaks", False, Measurement.COMPLETE),
        ("leaks", True, Measurement.INCOMPLETE),
    ],
)
def test_the_first_major_is_read(
    verdict: str, is_incomplete: bool | None, measurement: Measurement, answer: Answer | None
) -> None:
    """In which `verdict` was about the limit or the measurement, and `answer` could be absent."""
    gate = Gate(5, None, 7, 11, ("ab",)) if is_incomplete is not None else None
    new = replace(profile(), gate=gate, answer=answer, measurement=measurement)
    old = json.loads(written("json", new)) | {"schema": "memleak-android/report/1", "verdict": verdict}
    del old["measurement"]
    if gate:
        del old["gate"]["is_exceeded"]
        old["gate"]["is_incomplete"] = is_incomplete
    if answer is None:
        del old["answer"]
    else:
        del old["answer"]["line"]
    assert report_json.read_report(json.dumps(old).encode(), "old") == read_back(new)


def test_ids_of_names_that_json_cannot_hold_are_the_same() -> None:
    names = ("x\udcff", "y" * (NAME_MAX + 1), "/a/\udc80.so.1")
    for name in names:
        frames = (replace(DECODE.frames[2], function=name, module=f"/lib/{name}"), DECODE.frames[3])
        made = replace(DECODE, id=site_id(frames), frames=frames)
        assert read_back(profile(sites=(made,))).sites[0].id == made.id


def test_hostile_figures_are_bounded() -> None:
    made = json.loads(written("json", profile()))
    made["taken_at"] = "9999-99-99"
    made["sites"][0]["frames"][1]["address"] = "0x" + "f" * 100_000
    read = report_json.read_report(json.dumps(made).encode(), "report.json")
    assert read.wall_clock_s == 0.0
    assert read.sites[0].frames[1].address == 2**64 - 1


def test_no_text_of_a_report_steers_the_terminal() -> None:
    """Every string of a report.json, replaced by a hostile one where its schema lets it."""
    kept = {"schema", "measurement", "address", "vaddr", "class", "taken_at", "id", "trend", "moment"}

    def hostile(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {name: hostile(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        if not isinstance(value, str) or key in kept:
            return value
        return ("pair:" if key == "kind" else "") + "\x1b]0;owned\x07" + "y" * 100_000

    data = json.dumps(hostile(json.loads(written("json", WITH_ALL, show_allocs=True)))).encode()
    read = report_json.read_report(data, "report.json")
    for name in (name for name, form in FORMATS.items() if not form.is_binary and name != "json"):
        assert b"\x1b" not in written(name, read, show_allocs=True), name
