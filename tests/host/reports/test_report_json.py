"""report.json: its schema, what is written, reading it back."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile import Profile
from memleak_android.host.reports import report_json
from memleak_android.host.reports.base import ReportOptions
from memleak_android.unwind.trace import TraceEnd
from tests.support.goldens import assert_golden
from tests.support.profiles import DECODE, empty_profile, profile


def json_of(of: Profile, **options: Any) -> str:
    stream = io.StringIO()
    report_json.write(of, stream, ReportOptions(**options))
    return stream.getvalue()


def shipped_schema() -> Any:
    return json.loads(
        resources.files("memleak_android.host.reports").joinpath("report.schema.json").read_text()
    )


def test_whole_report() -> None:
    assert_golden(json_of(profile()), "report.json")


def test_shipped_schema_is_current() -> None:
    text = json.dumps(report_json.json_schema(), indent=1) + "\n"
    assert_golden(text, "../../../host/reports/report.schema.json")


@pytest.mark.parametrize("made", [profile(), empty_profile()])
@pytest.mark.parametrize("show_allocs", [False, True])
def test_reports_are_valid(made: Profile, show_allocs: bool) -> None:
    jsonschema.Draft202012Validator.check_schema(shipped_schema())
    jsonschema.validate(json.loads(json_of(made, show_allocs=show_allocs)), shipped_schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "memleak-android/report/2"),
        (("verdict",), "fine"),
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


def test_read_back_is_what_was_written() -> None:
    made = profile()
    options = ReportOptions(show_allocs=True)
    read = report_json.read_report(json_of(made, show_allocs=True).encode(), "report.json")
    assert read == report_json.to_report(made, options)


def test_fields_of_a_later_version_are_ignored() -> None:
    report = json.loads(json_of(profile()))
    report["new"] = report["sites"][0]["new"] = report["sites"][0]["frames"][0]["new"] = {"a": 1}
    report_json.read_report(json.dumps(report).encode(), "later.json")
    jsonschema.validate(report, shipped_schema())


def test_what_is_no_report_gets_one_line() -> None:
    for data in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000):
        with pytest.raises(UsageError) as caught:
            report_json.read_report(data, "old.json")
        line = str(caught.value)
        assert line.startswith("old.json is no memleak-android/report/1 file: ")
        assert line.endswith("; write one with --json FILE")
        assert "\n" not in line


def test_unknown_figures_are_null_never_0() -> None:
    made = profile()
    made = replace(made, totals=replace(made.totals, alloc_space=None, alloc_objects=None))
    report = json.loads(json_of(made))
    assert report["totals"]["alloc_space"] is None
    assert report["totals"]["alloc_objects"] is None


def test_bytes_of_a_path_that_are_no_utf8() -> None:
    made = profile(sites=(replace(DECODE, frames=(replace(DECODE.frames[0], module="/x\udcff.so"),)),))
    assert json.loads(json_of(made))["sites"][0]["frames"][0]["module"] == "/x\N{REPLACEMENT CHARACTER}.so"


def test_every_trace_end_has_a_field() -> None:
    names = set(report_json.ReportUnwinding.__struct_fields__)
    assert {end.name for end in TraceEnd} == names - {"stacks", "complete", "partial"}
