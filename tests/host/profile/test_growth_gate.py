"""--fail-on-growth: what counts, against which limit, what is said of it, and the exit code that follows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.cli import run
from memleak_android.host.errors import UsageError
from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.gate import GateRules, GrowthLimit, LeakLimit, judge
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.profile.unowned import UnownedGrowth, UnownedPart
from memleak_android.host.reports.text.gate import failure_lines
from tests.support.builders.profiles import DECODE, REGION, STDIO, profile, site
from tests.support.written import written_text as written

SPAN = GrowthSpan(10**9, 61 * 10**9, 23, 5)
OTHER = replace(site("0", 7, 1, *DECODE.frames[2:]), id="00000000000000f2")


def trending(base: CallSite, trend: Trend, rate: float, run_s: float = 0.0) -> CallSite:
    growth = Growth(trend, rate, rate * 0.9, rate * 1.1, 10**9, 5_003, run_s)
    return replace(base, growth=growth)


def measured(*sites: CallSite, span: GrowthSpan | None = SPAN) -> Profile:
    return profile(measurement=Measurement.COMPLETE, sites=sites, growth_span=span)


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
    results = json.loads(written("sarif", judged))["runs"][0]["results"]
    assert [(one["level"], one["partialFingerprints"]["stackHash/v1"]) for one in results] == [
        ("error", DECODE.id)
    ]
    line = 'type="limit" message="1 stack grows by 117.2 ± 11.7 KiB/min, limit 0 B/min"'
    assert line in written("junit", judged)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").write_text(written("json", GROWING))
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
