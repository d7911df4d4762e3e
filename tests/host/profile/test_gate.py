"""The gate: limits of bytes and growth, suppressions, baselines; what is said, and which exit code follows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import UsageError
from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.answering import answer_of
from memleak_android.host.profile.coverage import Answer as Met
from memleak_android.host.profile.coverage import Condition, Finding, Reason, findings
from memleak_android.host.profile.gate import GateRules, GrowthLimit, LeakLimit, judge
from memleak_android.host.profile.gate_result import Gate, SuppressionUse
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend, UnownedGrowth, UnownedPart
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.reports.text.gate import WIDTH_MAX, failure_lines
from tests.support.builders.profiles import CODEC, DECODE, PARTIAL, REGION, STDIO, frame, profile, site
from tests.support.written import written, written_text

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


DONE = findings(Condition, [])
SPAN = GrowthSpan(10**9, 61 * 10**9, 23, 5)
OTHER = replace(site("0", 7, 1, *DECODE.frames[2:]), id="00000000000000f2")


def trending(base: CallSite, trend: Trend, rate: float, run_s: float = 0.0) -> CallSite:
    growth = Growth(trend, rate, rate * 0.9, rate * 1.1, 10**9, 5_003, run_s)
    return replace(base, growth=growth)


def measured(*sites: CallSite, span: GrowthSpan | None = SPAN, coverage: Sequence[Finding] = DONE) -> Profile:
    return profile(measurement=Measurement.COMPLETE, sites=sites, growth_span=span, coverage=coverage)


GROWING = measured(
    trending(DECODE, Trend.GROWS, 2_000),
    trending(OTHER, Trend.BURST, 90_000),
    trending(STDIO, Trend.GROWS, 90_000),
)


def limit(rate: float, **more: object) -> GateRules:
    return GateRules(growth=GrowthLimit(rate), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate", "is_over"), [(2_000, False), (1_999, True), (0, True)])
def test_only_what_grows_and_counts(rate: float, is_over: bool) -> None:
    judged = judge(GROWING, limit(rate))
    assert judged.is_over_limit is is_over
    assert judged.gate is not None
    assert judged.gate.growth is not None
    assert (judged.gate.growth.stacks, judged.gate.growth.rate) == (1, 2_000)
    assert judged.gate.growth.error == pytest.approx(200)
    assert judged.gate.culprits == (DECODE.id,)


def test_a_place_may_grow_where_no_stack_does() -> None:
    """Its stacks are the culprits, but for those that are suppressed."""
    growth = Growth(Trend.GROWS, 2_000, 1_900, 2_100, 10**9, 1 << 20)
    place = Place("decode", "/srv/server", "user", 1 << 20, 2, 2, growth=growth)
    sites = tuple(replace(trending(one, Trend.STEADY, 9), place=0) for one in (DECODE, OTHER))
    made = replace(measured(*sites), places=(place,))
    judged = judge(made, limit(1_000))
    assert judged.is_over_limit
    assert judged.gate is not None and judged.gate.culprits == (DECODE.id, OTHER.id)
    assert failure_lines(judged)[0] == (
        "FAIL: no single stack explains that 117.2 ± 5.9 KiB/min more are held, limit 58.6 KiB/min"
    )
    judged = judge(made, limit(1_000, suppressions=["planted::innermost"]))
    assert judged.gate is not None and DECODE.id not in judged.gate.culprits


def test_regions_and_what_has_no_owner_count() -> None:
    judged = judge(measured(trending(REGION, Trend.GROWS, 90_000)), limit(89_999))
    assert judged.gate is not None and judged.gate.culprits == (REGION.id,)
    assert judged.is_over_limit
    unowned = UnownedGrowth(UnownedPart.MAPPINGS, 2_000, 1_900, 2_100, 0, 9_000)
    assert judge(replace(measured(), unowned=(unowned,)), limit(1_999)).is_over_limit
    kept = replace(unowned, part=UnownedPart.ALLOCATOR)
    assert not judge(replace(measured(), unowned=(kept,)), limit(0)).is_over_limit


def test_nothing_grows_whatever_the_limit() -> None:
    assert not judge(measured(trending(DECODE, Trend.PLATEAU, 5_000)), limit(0)).is_over_limit


def test_suppressed_growth_does_not_count() -> None:
    assert not judge(GROWING, limit(0, suppressions=["planted::"])).is_over_limit


@pytest.mark.parametrize("span", [None, GrowthSpan(0, 0, 3, 5)])
def test_growth_that_was_not_judged_is_incomplete(span: GrowthSpan | None) -> None:
    judged = judge(measured(DECODE, span=span), limit(10**9))
    assert judged.measurement is Measurement.INCOMPLETE
    assert judged.notes[0].startswith("growth is not judged, and has a limit: ")


@pytest.mark.parametrize("part", [UnownedPart.ALLOCATOR, UnownedPart.RESIDENT, UnownedPart.REGIONS])
def test_growth_that_is_not_known_is_incomplete(part: UnownedPart) -> None:
    """Unless it is within the limit, whatever it is."""
    made = replace(measured(), unowned=(UnownedGrowth(part, 2_000, 1_900, 2_100, 0, 9_000),))
    made = replace(made, answer=answer_of(made))
    judged = judge(made, limit(2_099))
    assert judged.measurement is Measurement.INCOMPLETE and not judged.is_over_limit
    assert judged.notes[0].startswith("growth is not known, and has a limit: ")
    assert judge(made, limit(2_100)).measurement is Measurement.COMPLETE
    left_out = Reason(Condition.PROGRAMS, Met.TOLERATED, "Python's objects were not counted")
    made = measured(coverage=findings(Condition, [left_out]))
    assert judge(replace(made, answer=answer_of(made)), limit(10**9)).measurement is Measurement.INCOMPLETE


def test_baseline_lets_only_faster_growth_count() -> None:
    old = (GROWING, "old.json")
    assert not judge(GROWING, limit(0, baseline=old)).is_over_limit
    faster = measured(trending(DECODE, Trend.GROWS, 2_300))
    assert judge(faster, limit(299, baseline=old)).is_over_limit
    assert not judge(faster, limit(300, baseline=old)).is_over_limit
    was_steady = (measured(trending(DECODE, Trend.STEADY, 2_000)), "old.json")
    assert judge(faster, limit(2_299, baseline=was_steady)).is_over_limit


def test_slower_growth_does_not_pay_for_faster() -> None:
    old = measured(trending(DECODE, Trend.GROWS, 2_000), trending(OTHER, Trend.GROWS, 2_000))
    new = measured(trending(DECODE, Trend.GROWS, 500), trending(OTHER, Trend.GROWS, 3_000))
    judged = judge(new, limit(999, baseline=(old, "old.json")))
    assert (judged.is_over_limit, judged.gate and judged.gate.culprits) == (True, (OTHER.id,))


def test_limits_of_leak_and_growth_beside_each_other() -> None:
    both = measured(trending(DECODE, Trend.GROWS, 2_000), trending(OTHER, Trend.STEADY, 0))
    by_growth = judge(both, limit(0, limit=LeakLimit(10**9)))
    assert (by_growth.is_over_limit, by_growth.gate and by_growth.gate.culprits) == (True, (DECODE.id,))
    by_size = judge(both, limit(10**9, limit=LeakLimit(0)))
    assert by_size.gate is not None
    assert (by_size.is_over_limit, set(by_size.gate.culprits)) == (True, {DECODE.id, OTHER.id})
    assert not judge(both, limit(10**9, limit=LeakLimit(10**9))).is_over_limit


def test_limit_by_run() -> None:
    span = replace(SPAN, run_s=4.0)
    made = measured(trending(DECODE, Trend.GROWS, 250, run_s=4.0), span=span)  # 1,000 bytes by run
    assert judge(made, GateRules(growth=GrowthLimit(999, is_by_run=True))).is_over_limit
    assert not judge(made, GateRules(growth=GrowthLimit(1_000, is_by_run=True))).is_over_limit
    with pytest.raises(UsageError):
        judge(GROWING, GateRules(growth=GrowthLimit(64, is_by_run=True)))


def test_baseline_of_slower_runs_compares_by_run() -> None:
    """1,000 bytes by each run in both, whatever time the runs took."""
    old = measured(trending(DECODE, Trend.GROWS, 125, run_s=8.0), span=replace(SPAN, run_s=8.0))
    new = measured(trending(DECODE, Trend.GROWS, 250, run_s=4.0), span=replace(SPAN, run_s=4.0))
    rules = GateRules(growth=GrowthLimit(0, is_by_run=True), baseline=(old, "old"))
    assert not judge(new, rules).is_over_limit


def test_what_is_said() -> None:
    lines = failure_lines(judge(GROWING, limit(1_000)))
    assert lines[0] == "FAIL: 1 stack grows by 117.2 ± 11.7 KiB/min, limit 58.6 KiB/min"
    assert lines[1].startswith("  1. 23,207 bytes in 23 allocations  planted::innermost")
    assert lines[2] == "     117.2 ± 11.7 KiB/min since 0:01, oldest 11.0 s, id 00000000000dec0d"
    assert len(lines) == 3
    crowd = [replace(trending(DECODE, Trend.GROWS, 9), id=f"{n:x}") for n in range(50)]
    assert len(failure_lines(judge(measured(*crowd), limit(0, limit=LeakLimit(0), suppressions=["x"])))) <= 20


def test_other_formats_name_what_grows_as_the_error() -> None:
    judged = judge(GROWING, limit(0))
    results = json.loads(written_text("sarif", judged))["runs"][0]["results"]
    assert [(one["level"], one["partialFingerprints"]["stackHash/v1"]) for one in results] == [
        ("error", DECODE.id)
    ]
    line = 'type="limit" message="1 stack grows by 117.2 ± 11.7 KiB/min, limit 0 B/min"'
    assert line in written_text("junit", judged)


def test_growth_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").write_text(written_text("json", GROWING))
    old = str(tmp_path / "old")
    assert run(["report", old, "--fail-on-growth", "120001/min"]) == 0
    assert run(["report", old, "--fail-on-growth", "8MB/h"]) == 0
    capsys.readouterr()
    assert run(["report", old, "--fail-on-growth", "119KB/min", "--format", "json"]) == 23
    printed = capsys.readouterr()
    assert json.loads(printed.out)["gate"]["growth"]["stacks"] == 1
    assert "FAIL: 1 stack grows by" in printed.err
    for wrong in ("5", "5/day", "x/min"):
        assert run(["report", old, "--fail-on-growth", wrong]) == 2
    assert run(["report", old, "--fail-on-growth", "5/run"]) == 2
    assert run(["--fail-on-growth", "5/run", "--", "true"]) == 2
    assert "without --scenario" in capsys.readouterr().err
