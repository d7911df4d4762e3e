"""The gate: limits, suppressions, baselines; what is said of it and which exit code follows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.profile.gate import GateRules, LeakLimit, judge
from memleak_android.host.profile.gate_result import Gate, SuppressionUse
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.reports.text.gate import WIDTH_MAX, failure_lines
from tests.support.builders.profiles import CODEC, DECODE, PARTIAL, frame, profile
from tests.support.written import written

HELD, BLOCKS = 23_207 + 997 + 207, 23 + 1 + 3  # the user's sites and the blocks without a stack of profile()


def complete() -> Profile:
    return profile(measurement=Measurement.COMPLETE)


def gate_of(of: Profile, rules: GateRules) -> tuple[bool, Gate]:
    judged = judge(of, rules)
    assert judged.gate is not None
    return judged.is_over_limit, judged.gate


@pytest.mark.parametrize(
    ("limit", "is_over"),
    [
        (LeakLimit(HELD), False),
        (LeakLimit(HELD - 1), True),
        (LeakLimit(HELD, BLOCKS), False),
        (LeakLimit(HELD, BLOCKS - 1), True),
    ],
)
def test_limit_counts_what_the_program_holds(limit: LeakLimit, is_over: bool) -> None:
    found, gate = gate_of(complete(), GateRules(limit))
    assert (found, gate.space, gate.objects) == (is_over, HELD, BLOCKS)
    assert gate.culprits == (DECODE.id, PARTIAL.id)


def test_a_limit_changes_nothing_of_what_is_said_of_the_measurement() -> None:
    for limit in (5, 10**9):
        judged = judge(profile(), GateRules(LeakLimit(limit)))
        assert (judged.measurement, judged.is_over_limit) == (Measurement.INCOMPLETE, limit == 5)


def test_nothing_asked_for_changes_nothing() -> None:
    assert judge(profile(), GateRules()) == profile()


def test_suppressed_sites_do_not_count_and_are_reported() -> None:
    judged = judge(complete(), GateRules(LeakLimit(1_300), ["nothing", "planted::"]))
    assert judged.gate is not None
    assert (judged.is_over_limit, judged.gate.space) == (False, HELD - 23_207)
    assert judged.gate.suppressions == (SuppressionUse("planted::", 23_207, 23),)
    assert [site.id for site in judged.sites if site.suppressed_by] == [DECODE.id]


def grown(by: int, site: CallSite = DECODE) -> Profile:
    sites = tuple(replace(s, inuse_space=s.inuse_space + by) if s is site else s for s in complete().sites)
    return replace(complete(), sites=sites)


def test_baseline_lets_only_growth_count() -> None:
    rules = GateRules(baseline=(complete(), "old.json"))
    assert not judge(complete(), rules).is_over_limit
    is_over, gate = gate_of(grown(1_009), rules)
    assert (is_over, gate.space, gate.culprits) == (True, 1_009, (DECODE.id,))
    assert not judge(grown(1_009), replace(rules, limit=LeakLimit(1_009))).is_over_limit
    assert not judge(grown(-1_009), rules).is_over_limit


def test_baseline_one_sites_loss_does_not_pay_for_anothers_growth() -> None:
    shrunk, new = grown(-5_000), replace(PARTIAL, id="new", stderr_space=None)
    other = replace(shrunk, sites=(*shrunk.sites, new))
    _, gate = gate_of(other, GateRules(baseline=(complete(), "old.json")))
    assert (gate.space, gate.culprits) == (997, ("new",))


def test_baseline_within_the_error_of_estimates() -> None:
    estimate = replace(DECODE, stderr_space=1_000)
    sampled = replace(complete(), sites=(estimate,))
    more = replace(sampled, sites=(replace(estimate, inuse_space=DECODE.inuse_space + 4_000),))
    assert not judge(more, GateRules(baseline=(sampled, "old"))).is_over_limit
    # the runtime's blocks and regions may grow
    region = grown(10**6, complete().sites[0])
    assert not judge(region, GateRules(baseline=(complete(), "old"))).is_over_limit


def test_failure_text_is_short_whatever_leaks() -> None:
    hostile = frame(CODEC, "\x1b[2J" + "x" * 100_000, source="a\nb.cc:5")
    sites = tuple(replace(DECODE, id=f"{n:x}", frames=(hostile,)) for n in range(500))
    known = replace(DECODE, id="known", frames=(frame(CODEC, "known"),))
    lines = failure_lines(judge(profile(sites=(*sites, known)), GateRules(LeakLimit(5), ["^known$"])))
    assert len(lines) <= 20
    assert max(map(len, lines)) <= WIDTH_MAX
    assert all(line.isprintable() for line in lines)
    assert lines[-2:] == ["     … and 492 more stacks", "     23 more allocations are suppressed"]


def test_failure_text_names_the_programs_own_function() -> None:
    lines = failure_lines(judge(complete(), GateRules(LeakLimit(1000, 5), ["nothing"])))
    assert lines[:3] == [
        "FAIL: 24,411 bytes in 27 allocations counted, limit 1,000 bytes or 5 allocations",
        "  1. 23,207 bytes in 23 allocations  planted::innermost(unsigned long) (inlined)  src/decode.cc:14 [server]",
        "     oldest 11.0 s, id 00000000000dec0d",
    ]
    assert failure_lines(judge(complete(), GateRules(LeakLimit(10**9)))) == []


def saved(path: Path, made: Profile) -> str:
    path.write_bytes(written("json", made))
    return str(path)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = saved(tmp_path / "old", complete()), saved(tmp_path / "new", grown(1_009))
    assert run(["report", new]) == 0
    assert run(["report", new, "--fail-on-leak", "1M"]) == 0
    capsys.readouterr()
    assert run(["report", new, "--fail-on-leak", "1K"]) == 23
    assert "FAIL: 25,420 bytes in 27 allocations counted, limit 1,024 bytes" in capsys.readouterr().err
    assert run(["report", new, "--baseline", old]) == 23
    printed = capsys.readouterr()
    assert f"FAIL: 1,009 bytes in 0 allocations grown by since {old}, limit 0 bytes" in printed.err
    assert run(["report", old, "--baseline", old]) == 0


def test_a_report_is_not_asked_what_only_a_recording_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = saved(tmp_path / "old", complete())
    for words in (["--symbols", "."], ["-z", "5"], ["-Z", "5"]):
        assert run(["report", old, *words]) == 2
        assert f"{words[0]}: {old} is a report, not a recording" in capsys.readouterr().err


def test_suppressions_are_generated_for_what_counted_only(tmp_path: Path) -> None:
    old, new = saved(tmp_path / "old", complete()), saved(tmp_path / "new", grown(1_009))
    run(["report", new, "--baseline", old, "--gen-suppressions", str(tmp_path / "supp")])
    lines = (tmp_path / "supp").read_text().splitlines()
    assert [line for line in lines if line.startswith("leak:")] == [
        "leak:^planted::innermost(unsigned long)$"
    ]


def test_generated_suppressions_close_the_circle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = tuple(site for site in complete().sites if site.kind == "user")
    totals = replace(complete().totals, unattributed_space=0, unattributed_objects=0)
    new = saved(tmp_path / "new", replace(complete(), sites=sites, totals=totals))
    supp = str(tmp_path / "all.supp")
    assert run(["report", new, "--fail-on-leak", "0", "--gen-suppressions", supp]) == 23
    assert run(["report", new, "--fail-on-leak", "0", "--suppressions", supp]) == 0
    output = capsys.readouterr().out
    assert "Suppressions used:\n  count      bytes template\n     23      23207 ^planted::innermost" in output
    assert "suppressed by ^libcodec.so$" not in output
    assert "suppressed by libcodec.so$" in output
    assert run(["report", new, "--fail-on-leak", "0", "--gen-suppressions", supp]) == 2


def test_gate_in_the_json_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = saved(tmp_path / "new", complete())
    supp = tmp_path / "supp"
    supp.write_text("leak:planted::\n")
    words = ["report", new, "--fail-on-leak", "5,6", "--suppressions", str(supp), "--format", "json"]
    assert run(words) == 23
    made = json.loads(capsys.readouterr().out)
    assert made["measurement"] == "complete" and made["gate"]["is_exceeded"]
    assert (made["gate"]["limit_space"], made["gate"]["limit_objects"]) == (5, 6)
    assert made["gate"]["suppressions"] == [{"template": "planted::", "space": 23_207, "objects": 23}]
    assert [site["suppressed_by"] for site in made["sites"] if "suppressed_by" in site] == ["planted::"]
    again = judge(judge(complete(), GateRules(LeakLimit(5))), GateRules(LeakLimit(10**9)))
    assert not again.is_over_limit
