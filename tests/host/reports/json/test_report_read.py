"""A report.json, read as the Profile that it was written from."""

import json
from dataclasses import replace

import pytest

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
from tests.support.written import read_back, written

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
