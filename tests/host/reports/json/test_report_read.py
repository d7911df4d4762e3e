"""A report.json, read as the Profile that it was written from."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.gate_result import Gate, SuppressionUse
from memleak_android.host.profile.profile import (
    Growth,
    GrowthSpan,
    Instant,
    Profile,
    SiteSum,
    StopMoment,
    ThreadStop,
    ThreadSum,
    Trend,
)
from memleak_android.host.profile.site_id import NAME_MAX, site_id
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.formats import FORMATS
from memleak_android.host.reports.json import report as report_json
from tests.support.builders.profiles import DECODE, empty_profile, profile


def read_back(made: Profile) -> Profile:
    stream = io.StringIO()
    report_json.write(made, stream, ReportOptions(show_allocs=True))
    return report_json.read_report(stream.getvalue().encode(), "report.json")


WITH_ALL = replace(
    profile(),
    threads=(ThreadSum(4711, 4712, 101_211, 29),),
    timeline=(Instant(5, 7, 11, (SiteSum("ab", 7, 11),)), Instant(13, 17, 19, ())),
    sites=(replace(DECODE, growth=Growth(Trend.GROWS, 23.5, 19.25, 29.0, 7, 11)),),
    growth=GrowthSpan(5, 7, 11, 13),
    gate=Gate(5, None, 7, 11, ("ab",), True, "old.json", (SuppressionUse("a*", 13, 17),)),
    stops=(
        ThreadStop(StopMoment.ATTACH, False, 7_919, 3, 4711),
        ThreadStop(StopMoment.DETACH, True, 104_729, 1, 4711),
    ),
)


@pytest.mark.parametrize("made", [profile(), empty_profile(), WITH_ALL])
def test_everything_comes_back(made: Profile) -> None:
    by_size = sorted(made.sites, key=lambda site: -site.inuse_space)
    expected = replace(made, sites=tuple(replace(site, id=site_id(site.frames)) for site in by_size))
    assert read_back(made) == expected


def test_ids_of_names_that_json_cannot_hold_are_the_same() -> None:
    names = ("x\udcff", "y" * (NAME_MAX + 1), "/a/\udc80.so.1")
    for name in names:
        frames = (replace(DECODE.frames[2], function=name, module=f"/lib/{name}"), DECODE.frames[3])
        made = replace(DECODE, id=site_id(frames), frames=frames)
        assert read_back(profile(sites=(made,))).sites[0].id == made.id


def test_hostile_figures_are_bounded() -> None:
    stream = io.StringIO()
    report_json.write(profile(), stream, ReportOptions())
    made = json.loads(stream.getvalue())
    made["taken_at"] = "9999-99-99"
    made["sites"][0]["frames"][1]["address"] = "0x" + "f" * 100_000
    read = report_json.read_report(json.dumps(made).encode(), "report.json")
    assert read.wall_clock_s == 0.0
    assert read.sites[0].frames[1].address == 2**64 - 1


def test_no_text_of_a_report_steers_the_terminal() -> None:
    """Every string of a report.json, replaced by a hostile one where its schema lets it."""
    stream = io.StringIO()
    report_json.write(WITH_ALL, stream, ReportOptions(show_allocs=True))
    kept = {"schema", "verdict", "address", "vaddr", "class", "taken_at", "id", "trend", "moment"}

    def hostile(value: object, key: str = "") -> object:
        if isinstance(value, dict):
            return {name: hostile(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [hostile(one) for one in value]
        if not isinstance(value, str) or key in kept:
            return value
        return ("pair:" if key == "kind" else "") + "\x1b]0;owned\x07" + "y" * 100_000

    data = json.dumps(hostile(json.loads(stream.getvalue()))).encode()
    read = report_json.read_report(data, "report.json")
    for name, form in FORMATS.items():
        if form.is_binary or name == "json":
            continue
        output = io.BytesIO()
        form.write(read, output, ReportOptions(show_allocs=True))
        assert b"\x1b" not in output.getvalue(), name


def test_errors_that_quote_the_file_are_short_and_harmless() -> None:
    data = json.dumps({"schema": "\x1b[2J" + "x" * 100_000}).encode()
    with pytest.raises(UsageError) as caught:
        report_json.read_report(data, "report.json")
    assert len(str(caught.value)) < 400
    assert "\x1b" not in str(caught.value)
