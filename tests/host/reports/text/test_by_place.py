"""The first screen against whole expected texts; long names, many places and notes stay within it."""

import html
import io
import json
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from memleak_android.host.profile.answer import Answer, AnswerState, Package, Place
from memleak_android.host.profile.answering import answer_of
from memleak_android.host.profile.coverage import Answer as Met
from memleak_android.host.profile.coverage import Condition, Reason, findings, is_sufficient
from memleak_android.host.profile.gate import GateRules, LeakLimit, judge
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend, UnownedGrowth, UnownedPart
from memleak_android.host.profile.profile import (
    LeakKind,
    LeakSum,
    Measurement,
    ModuleSummary,
    Profile,
    SymbolClass,
)
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export import github
from memleak_android.host.reports.text.answer import subject
from tests.support.builders.profiles import DECODE, MALLOC, POOL, SERVER, frame, profile
from tests.support.goldens import assert_golden
from tests.support.written import data_of_page, difference, read_back, written_text

SPAN = GrowthSpan(10**9, 61 * 10**9, 23, 5)
DONE = findings(Condition, [])
text_of = partial(written_text, "text")


def grows(rate: float, trend: Trend = Trend.GROWS, rise: int = 1 << 20) -> Growth:
    return Growth(trend, rate, rate * 0.9, rate * 1.1, 10**9, rise)


def place(function: str, space: int, objects: int, growth: Growth | None = None, **more: object) -> Place:
    return Place(function, SERVER, "user", space, objects, 2, growth=growth, **more)  # type: ignore[arg-type]


INNERMOST = place(
    "planted::innermost(unsigned long)", 23_207, 23, grows(70_000), file="src/decode.cc", line=14
)
CACHE = place("Cache<int>::fill(int) const", 1 << 22, 7, grows(0, Trend.PLATEAU))
FREED = place("make_index", 0, 0, grows(9_000), freed=1 << 20)
RUNTIME = replace(place("call_init", 72_704, 1), kind="runtime")


def answered(*places: Place, **changes: object) -> Profile:
    lost = (LeakSum(LeakKind.DEFINITELY_LOST, 23_207, 23),)
    sites = (
        replace(DECODE, place=0, leaks=lost, growth=places[0].growth if places else None),
        replace(POOL, place=2),
    )
    fields: dict[str, Any] = {
        "places": places,
        "sites": sites,
        "growth_span": SPAN,
        "coverage": DONE,
        "notes": (),
    }
    fields |= changes
    is_whole = is_sufficient(fields["coverage"])
    made = profile(measurement=Measurement.COMPLETE if is_whole else Measurement.INCOMPLETE, **fields)
    return replace(made, answer=answer_of(made))


def test_a_leak() -> None:
    assert_golden(text_of(answered(INNERMOST, FREED, RUNTIME, CACHE)), "by_place.txt")


def test_what_is_held_at_exit() -> None:
    made = answered(replace(INNERMOST, growth=None), replace(CACHE, growth=None), RUNTIME, growth_span=None)
    assert_golden(text_of(made), "by_place_held.txt")
    by_count = text_of(made, sort="count").splitlines()
    assert "planted::innermost" in by_count[3], "23 blocks before 7"


def test_what_does_not_grow_is_a_line() -> None:
    lines = text_of(answered(CACHE, CACHE, RUNTIME)).splitlines()
    rest = (
        "Not growing: 8.0 MiB in 2 places, most in Cache::fill  [server]; the C/C++ runtime's own: 71.0 KiB"
    )
    assert lines[:3] == [
        "NOT GROWING  ./server --port 80 (pid 4711) does not grow, measured for 12 s",
        "",
        rest,
    ]


def test_what_grows_by_a_thousandth_of_what_is_held_is_named() -> None:
    totals = replace(profile().totals, inuse_space=1 << 30)
    lines = text_of(answered(replace(INNERMOST, growth=grows(976)), CACHE, totals=totals)).splitlines()
    assert lines[:4] == [
        "NOT GROWING  ./server --port 80 (pid 4711) does not grow but for 57.2 KiB/min in 1 place, measured for 12 s",
        "",
        "Grows little: 57.2 KiB/min in 1 place, most in planted::innermost  src/decode.cc:14",
        "Not growing: 4.0 MiB in 1 place, most in Cache::fill  [server]",
    ]


def test_reachability_is_advised_where_it_tells_something() -> None:
    """Not where it was asked for, nor of descriptors."""
    unasked = replace(answered(INNERMOST), leaks=())
    opens = replace(INNERMOST, kind="pair:fd", unit="descriptor")
    asked = replace(unasked, leaks=(LeakSum(LeakKind.DEFINITELY_LOST, 1, 1),))
    advised = [
        "--reachability" in text_of(one) for one in (unasked, asked, replace(answered(opens), leaks=()))
    ]
    assert advised == [True, False, False]


def test_a_program_in_a_deep_folder_keeps_its_name() -> None:
    target = replace(profile().target, command=f"/{'d' * 90}/bin/python3.12 -m app 80")
    assert text_of(answered(CACHE, target=target)).startswith("NOT GROWING  python3.12 -m app 80 (pid 4711) ")


def test_it_stays_within_a_screen() -> None:
    """A hundred places with names of a thousand characters, and notes."""
    long = place("n" * 1000 + "::f(int)", 1 << 20, 3, grows(70_000), file=f"/{'d' * 500}/a.cc", line=3)
    notes = tuple(f"note {number} {'w ' * 300}" for number in range(20))
    lines = text_of(
        answered(*[long] * 100, notes=notes, target=replace(profile().target, command="c" * 4096))
    ).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 120
    assert "   … 90 more places, 90.0 MiB (-T 0 shows all)" in lines
    assert "note: 17 more (-v)" in lines
    assert sum("n::f" in line for line in lines) == 10, "the end of a name tells functions apart"


@pytest.mark.parametrize(
    ("module", "way_out"),
    [
        (
            "/usr/bin/mawk",
            "set DEBUGINFOD_URLS=https://debuginfod.elfutils.org, or pass --symbols with its debug file",
        ),
        (
            "/apex/com.android.art/lib64/mawk",
            "pass --symbols with the unstripped libraries of the device's build",
        ),
        ("/srv/mawk", "pass --symbols with the unstripped mawk: a folder, or an APK, AAB or zip"),
        ("/usr/lib/python3/dist-packages/mawk", "build its package from source with -g (CFLAGS=-g)"),
        ("[anon]", ""),
    ],
)
def test_code_without_a_name_has_its_address_and_the_way_to_lines(module: str, way_out: str) -> None:
    nameless = replace(place("", 23_207, 23, grows(70_000)), module=module)
    frames = (MALLOC, replace(frame(SERVER, "", 0x23), module=module, build_id="dd04"))
    summary = ModuleSummary(module, "dd04", SymbolClass.NONE)
    sites = (replace(DECODE, place=0, frames=frames, leaks=()),)
    lines = text_of(answered(nameless, sites=sites, modules=(summary,))).splitlines()
    name = "mawk+0x1000" if way_out else "[generated code]"
    assert lines[3].endswith(f"       23  {name}")
    assert [line for line in lines if "no lines" in line] == [f"no lines of mawk: {way_out}"] * bool(way_out)


@pytest.mark.parametrize(("module", "has_map"), [("[anon]", True), ("/memfd:jit-cache (deleted)", False)])
def test_the_way_to_the_names_of_generated_code(module: str, has_map: bool) -> None:
    """ART writes no perf map."""
    text = text_of(answered(replace(place("", 23_207, 23, grows(70_000)), module=module)))
    assert ("\nno names of generated code: node --perf-basic-prof, " in text) == has_map


def test_handles_are_counted_in_every_report() -> None:
    """--pairs fd: no descriptor is a byte. Beside memory a slow leak of descriptors is not lost in the megabytes."""
    opens = replace(place("open_log", 300, 300, grows(0.2, rise=275)), kind="pair:fd", unit="descriptor")
    sites = (
        replace(DECODE, inuse_space=300, inuse_objects=300, place=0, growth=opens.growth, unit=opens.unit),
    )
    totals = replace(profile().totals, unattributed_space=0, unattributed_objects=0)
    made = judge(answered(opens, sites=sites, totals=totals), GateRules(LeakLimit(5)))
    for name in ("text", "json", "html", "junit", "sarif"):
        text = written_text(name, made)
        assert "grows by 12.0 ± 1.2 descriptors/min" in text, name
        assert "300 descriptors" in text or name in ("json", "html"), name
        assert not re.search(r"\d bytes| B/min|\d B ", text), name
    assert (
        text_of(made).splitlines()[3]
        == " 1 12 descriptors/min        300           open_log  [server]  (pair:fd)"
    )
    assert data_of_page(written_text("html", made))["unit"] == "descriptors"
    assert read_back(made).places[0].unit == "descriptor"
    assert difference("text", made, made).startswith(
        "SAME  as before: both leak, 12.0 ± 1.2 descriptors/min\n"
    )
    both = answered(opens, INNERMOST, sites=(*sites, replace(DECODE, place=1)))
    line = "grows by 4.0 ± 0.4 MiB/min and 12 descriptors/min: 2 places"
    assert line in text_of(both).splitlines()[0] and both.answer and both.answer.unit == "byte"


def test_a_long_path_keeps_the_number_of_its_line() -> None:
    long = place("n" * 50, 1 << 20, 3, grows(70_000), file=f"/{'d' * 500}/server.py", line=12_308)
    assert "/server.py:12308" in text_of(answered(long)).splitlines()[3]


def test_what_the_first_line_says_is_no_note() -> None:
    why = "its child process 9 (python3) was not measured: use --follow, or --pid 9"
    coverage = findings(Condition, [Reason(Condition.PROGRAMS, Met.TOLERATED, why)])
    answer = Answer(AnswerState.CANNOT_TELL, why)
    text = text_of(replace(answered(CACHE, coverage=coverage, notes=(why, "another")), answer=answer))
    assert "note: another\n" in text and "note: its child" not in text
    assert text.endswith("\nnext: again, as the first line says; -v names all that is missing\n")


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (Package("lz4", "4.0.2\x1b[2J", "python"), "lz4 4.0.2\\x1b[2J"),
        (Package("libcodec1", "1.2-3", "dpkg"), "libcodec1 1.2-3 (dpkg)"),
    ],
)
def test_the_package_of_a_module_without_lines(package: Package, said: str) -> None:
    made = answered(replace(INNERMOST, file=None, line=None, module="/usr/lib/libcodec.so", package=package))
    shown = f"planted::innermost  [libcodec.so] · {said}  (lost)"
    assert text_of(made).splitlines()[3].endswith(shown)
    assert data_of_page(written_text("html", made))["packages"] == {"libcodec.so": said}
    (place,) = json.loads(written_text("json", made))["places"]
    assert place["package"]["name"] == package.name and place["package"]["manager"] == package.manager


def test_memory_without_an_owner_has_its_line() -> None:
    unowned = UnownedGrowth(UnownedPart.MAPPINGS, 20_000, 19_000, 21_000, 10**9, 9_000_000)
    text = text_of(answered(CACHE, CACHE, RUNTIME, unowned=(unowned,)))
    assert text.startswith(
        "LEAKING  ./server --port 80 (pid 4711) grows by 1.1 ± 0.1 MiB/min: in memory without a stack"
    )
    assert "   1.1 ± 0.1 MiB/min in memory of no block and no region that was seen\n" in text


@pytest.mark.parametrize(
    ("coverage", "said"),
    [
        (DONE, "complete"),
        (
            findings(Condition, [Reason(Condition.STACKS, Met.TOLERATED, "7 stacks are cut")]),
            "complete but for: 7 stacks are cut",
        ),
        (
            findings(Condition, [Reason(Condition.STACKS, Met.NO, text) for text in ("one", "two")]),
            "incomplete: one; 1 more in the notes",
        ),
        ((), "incomplete: it is not known what is missing"),
    ],
    ids=["complete", "tolerated", "incomplete", "unknown"],
)
def test_the_last_word_is_on_the_measurement(coverage: tuple[object, ...], said: str) -> None:
    lines = text_of(answered(INNERMOST, FREED, RUNTIME, coverage=coverage)).splitlines()
    assert lines[-2] == f"measured: every allocation (bpf), {said}; the program exited with status 0"


@pytest.mark.parametrize("file", ["as built", "newer", "private", "absent"])
def test_the_source_line(file: str, tmp_path: Path) -> None:
    source, module = tmp_path / "a.cc", tmp_path / "server"
    if file != "absent":
        source.write_text("one\n\tkeep(std::malloc(leak));\n")
    module.write_bytes(b"")
    if file == "newer":
        os.utime(source, ns=(0, module.stat().st_mtime_ns + 1))
    if file == "private":
        source.chmod(0o600)
    text = text_of(answered(replace(INNERMOST, file=str(source), line=2, module=str(module))))
    assert ("     │ keep(std::malloc(leak));\n" in text) == (file == "as built")


def test_whole_stacks_are_for_the_asking() -> None:
    made = answered(INNERMOST, FREED, RUNTIME)
    for options in ({"verbose": True}, {"show_allocs": True}, {"sort": "peak"}):
        text = text_of(made, **options)
        assert text.startswith("LEAKING  ") and "from stack" in text
        assert "growth    of single stacks 1 grows (23 snapshots from 0:01 to 1:01)" in text
    assert "from stack" in text_of(replace(made, answer=None)), "of several recordings"


@pytest.mark.parametrize("limit", [None, 1])
def test_every_report_begins_with_the_answer_and_ends_with_the_measurement(limit: int | None) -> None:
    made = judge(answered(INNERMOST, FREED, RUNTIME), GateRules(LeakLimit(limit) if limit else None))
    line = text_of(made).splitlines()[0]
    measured = "measured: every allocation (bpf), complete"
    assert measured in text_of(made) and measured in text_of(made, verbose=True)
    page = data_of_page(written_text("html", made))
    assert (page["answer"], page["measured"], page["isOverLimit"]) == (line, measured, bool(limit))
    answer = json.loads(written_text("json", made))["answer"]
    assert (answer["state"], answer["line"]) == ("leaking", line)
    (run,) = json.loads(written_text("sarif", made))["runs"]
    notes = run["invocations"][0]["toolExecutionNotifications"]
    assert notes[0] == {"level": "error" if limit else "warning", "message": {"text": line}}
    assert (notes[-1]["message"]["text"], run["properties"]["answer"]) == (measured, answer)
    suite = ElementTree.fromstring(written_text("junit", made))[0]
    assert [one.attrib["value"] for one in suite[0]] == ["leaking", line]
    assert suite[1][0].attrib["message"].startswith(line) and suite[-1].findtext("system-out") == measured
    annotations, summary = io.StringIO(), io.StringIO()
    github.write_annotations(made, annotations, ReportOptions())
    assert annotations.getvalue().startswith(
        f"::{'error' if limit else 'warning'} title=memleak-android::{line}\n"
    )
    github.write_summary(made, summary, ReportOptions())
    lines = html.unescape(summary.getvalue()).splitlines()
    assert lines[0] == f"### {'❌' if limit else '⚠️'} {line}" and lines[-2] == measured


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("./server --port 80", "./server --port 80"),
        ("/opt/venv/lib/deep/down/bin/python3.11 app.py --port 80", "python3.11 app.py --port 80"),
        (
            "/opt/venv/bin/python3.11 /srv/deployments/shop/current/app.py",
            "python3.11 /srv/deployments/shop/curren…",
        ),
        ("app-" + "x" * 50, "app-" + "x" * 35 + "…"),
    ],
)
def test_a_long_command_keeps_its_arguments(command: str, shown: str) -> None:
    made = profile(target=replace(profile().target, command=command, package=None, pid=7))
    assert subject(made) == f"{shown} (pid 7)"
