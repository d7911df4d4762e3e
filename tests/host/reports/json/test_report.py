"""report.json: its schema, what is written, reading it back."""

import json
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

import jsonschema
import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.answer import Answer, AnswerState
from memleak_android.host.profile.profile import Profile, StopMoment, ThreadStop
from memleak_android.host.reports.json import report as report_json
from tests.support.builders.profiles import DECODE, empty_profile, profile
from tests.support.goldens import assert_golden
from tests.support.written import written_text

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
