"""SARIF, JUnit and GitHub's own: by their schemas and readers, with hostile names, and what fails in them."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from memleak_android.host.cli import run
from memleak_android.host.profile.answer import Answer, AnswerState
from memleak_android.host.profile.gate import GateRules, LeakLimit, judge
from memleak_android.host.profile.gate_result import GrowthGate
from memleak_android.host.profile.profile import LeakKind, LeakSum, Measurement, Profile
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export import github
from tests.support.builders.profiles import CODEC, DECODE, PARTIAL, empty_profile, frame, profile
from tests.support.oracles.foreign_formats import npm_json
from tests.support.written import written_text as written

LEAKING = judge(profile(measurement=Measurement.COMPLETE), GateRules(LeakLimit(1000), ["libcodec.so"]))
WITHIN = judge(profile(measurement=Measurement.COMPLETE), GateRules(LeakLimit(10**9)))
HOSTILE = replace(
    frame(CODEC, "</script><a>|x|`\x1b]0;owned\x07::error ::%0A\n" + "y" * 1_000_000),
    file="a\x00,b:c\udcff\ufffe.cc", line=5,
)  # fmt: skip


def hostile_profile() -> Profile:
    return judge(
        profile(sites=(replace(DECODE, frames=(HOSTILE,)),), notes=("\x1b[2J\n::",)), GateRules(LeakLimit(5))
    )


def sarif_of(of: Profile, **options: Any) -> Any:
    made = json.loads(written("sarif", of, **options))
    schema = npm_json("@microsoft/jest-sarif@1.0.0-beta.0", "sarif-2.1.0-rtm.5.json")
    jsonschema.validate(made, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**made, "version": "2.2.0"}, schema)
    return made["runs"][0]


@pytest.mark.parametrize("made", [profile(), empty_profile(), LEAKING, WITHIN, hostile_profile()])
def test_sarif_by_its_schema(made: Profile) -> None:
    sarif_of(made)


def test_sarif_results() -> None:
    results = sarif_of(LEAKING, source_root="src")["results"]
    assert [one["partialFingerprints"]["stackHash/v1"] for one in results] == [DECODE.id, PARTIAL.id]
    leak, suppressed = results
    assert (leak["level"], "suppressions" in leak) == ("error", False)
    assert suppressed["suppressions"][0]["justification"] == "leak:libcodec.so"
    location = leak["locations"][0]["physicalLocation"]
    assert (location["artifactLocation"]["uri"], location["region"]["startLine"]) == ("decode.cc", 14)
    text = "23,207 bytes in 23 allocations outstanding, allocated in planted::"
    assert leak["message"]["text"].startswith(text)
    assert [one["level"] for one in sarif_of(WITHIN)["results"]] == ["note", "note"]
    assert [one["level"] for one in sarif_of(profile())["results"]] == ["warning", "warning"]


def test_sarif_says_what_leads_to_the_blocks() -> None:
    lost = (LeakSum(LeakKind.STILL_REACHABLE, 3, 1), LeakSum(LeakKind.DEFINITELY_LOST, 500, 2))
    (result,) = sarif_of(profile(sites=(replace(DECODE, leaks=lost),)))["results"]
    text = "; definitely lost 500 bytes in 2 allocations, still reachable 3 bytes in 1 allocation"
    assert result["message"]["text"].endswith(text)
    kinds = {"still_reachable": {"space": 3, "objects": 1}, "definitely_lost": {"space": 500, "objects": 2}}
    assert result["properties"] == {"kind": "user", "leaks": kinds}


def test_sarif_of_an_incomplete_result() -> None:
    run_ = sarif_of(profile())
    assert run_["invocations"][0]["executionSuccessful"] is False
    absolute = replace(DECODE, frames=(replace(DECODE.frames[2], file="/src/my file.cc"),))
    (result,) = sarif_of(profile(sites=(absolute,)))["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "file:///src/my%20file.cc"


def junit_of(of: Profile) -> dict[str, type | None]:
    """Case → what became of it, as junitparser reads them."""
    text = written("junit", of)
    (suite,) = JUnitXml.fromstring(text.encode())
    cases = {case.name: (type(case.result[0]) if case.result else None) for case in suite}
    outcomes = list(cases.values())
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (
        len(cases), outcomes.count(Failure), outcomes.count(Error), outcomes.count(Skipped)
    )  # fmt: skip
    return cases


def test_junit() -> None:
    site = f"planted::innermost(unsigned long) {DECODE.id}"  # no offset: the same in the next build
    assert junit_of(LEAKING) == {"measurement": None, "held": Failure, site: Failure}
    assert junit_of(WITHIN)[site] is None
    gate = WITHIN.gate
    assert gate is not None
    grown = replace(WITHIN, gate=replace(gate, growth=GrowthGate(1000, 3000, 10, 1)))
    cases = junit_of(grown)
    assert (cases["held"], cases["growth"]) == (None, Failure), "by what failed"
    assert junit_of(profile()) == {"measurement": Error, "answer": Skipped}
    assert junit_of(empty_profile()) == {"measurement": None, "answer": Skipped}


def test_junit_takes_names_that_xml_cannot_hold() -> None:
    cases = junit_of(hostile_profile())
    assert len(cases) == 3
    text = written("junit", hostile_profile())
    assert len(text) < 20_000
    assert "\x1b" not in text and "\x00" not in text


def github_texts(of: Profile, root: str = "") -> tuple[str, str]:
    annotations, summary = io.StringIO(), io.StringIO()
    github.write_annotations(of, annotations, ReportOptions(source_root=root))
    github.write_summary(of, summary, ReportOptions(source_root=root))
    return annotations.getvalue(), summary.getvalue()


def test_annotations_at_the_leaking_line() -> None:
    annotations, summary = github_texts(LEAKING, "src/")
    assert annotations == (
        "::error title=memory leak,file=decode.cc,line=14::23,207 bytes in 23 allocations  "
        "planted::innermost(unsigned long) (inlined)  src/decode.cc:14 [server] (id 00000000000dec0d)\n"
    )
    assert summary.startswith("### ❌ memleak-android\n")
    row = f"| 23,207 | 23 | planted::innermost(unsigned long) (inlined) | decode.cc:14 | {DECODE.id} |"
    assert row in summary.splitlines()


def test_no_annotation_where_nothing_failed() -> None:
    assert github_texts(WITHIN)[0] == ""
    warning = "::warning title=memleak-android::measured: every allocation (bpf), incomplete: "
    assert github_texts(profile())[0].startswith(warning)
    good = replace(WITHIN, answer=Answer(AnswerState.NOT_GROWING))
    annotations, summary = github_texts(good)
    assert annotations.startswith("::notice title=memleak-android::NOT GROWING  ./server")
    assert annotations.count("\n") == 1 and summary.startswith("### ✅ NOT GROWING  ")


def test_names_cannot_speak_to_the_runner_or_the_page() -> None:
    annotations, summary = github_texts(hostile_profile())
    # the command, and text within it
    assert [line.count("::error") for line in annotations.splitlines()] == [2, 0]
    assert re.match(r"::error title=memory leak,file=a\\x00%2Cb%3Ac\\udcff\\ufffe\.cc,line=5::", annotations)
    assert "::%250A\\n" in annotations
    assert "\x1b" not in annotations + summary
    assert "<" not in summary and "`" not in summary
    (row,) = [line for line in summary.splitlines() if DECODE.id in line]
    assert row.count("|") == 6
    assert len(summary) < 2_000


def test_in_a_github_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    (tmp_path / "report.json").write_text(written("json", profile(measurement=Measurement.COMPLETE)))
    words = ["report", str(tmp_path / "report.json"), "--fail-on-leak", "0"]
    assert run(words) == 23
    assert "::error" not in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    summary.write_text("before\n")
    assert run(words) == 23
    assert capsys.readouterr().err.count("::error title=memory leak") == 2
    assert summary.read_text().startswith("before\n### ❌")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/nowhere/summary.md")
    assert run(words) == 23
    assert "could not write the step summary /nowhere/summary.md" in capsys.readouterr().err


def test_what_was_freed_at_exit_is_named() -> None:
    freed = replace(DECODE, inuse_space=0, inuse_objects=0)
    (result,) = sarif_of(profile(sites=(freed,)))["results"]
    assert result["message"]["text"].startswith("freed at exit, allocated in ")
