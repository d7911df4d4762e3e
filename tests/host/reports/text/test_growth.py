"""The answer on growth: one line, then the fastest stacks."""

from dataclasses import replace

import pytest

from memleak_android.host.profile.growth import (
    Growth,
    GrowthSpan,
    MappingSum,
    Trend,
    UnownedGrowth,
    UnownedPart,
)
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.profile.sort_orders import sorted_sites
from memleak_android.host.reports.text.growth import growth_lines, site_growth
from memleak_android.host.reports.units import clock, rate_text
from tests.support.builders.profiles import DECODE, REGION, profile

SPAN = GrowthSpan(10**9, 61 * 10**9, 23, 5)
MINUTE_42 = 42 * 60 * 10**9


def judged(trend: Trend, bytes_per_s: float = 0.0, rise: int = 0, base: CallSite = DECODE) -> CallSite:
    error = bytes_per_s / 10
    growth = Growth(trend, bytes_per_s, bytes_per_s - error, bytes_per_s + error, MINUTE_42, rise)
    return replace(base, growth=growth, id=f"{rise:016x}")


def answer(*sites: CallSite, span: GrowthSpan | None = SPAN) -> list[str]:
    made: Profile = replace(profile(), sites=sites, growth_span=span)
    return list(growth_lines(made))


def test_what_grows_how_fast_and_its_share() -> None:
    lines = answer(
        judged(Trend.GROWS, 2_000, 700),
        judged(Trend.GROWS, 20_000, 8_900),
        judged(Trend.BURST, 0, 400),
        judged(Trend.STEADY, 0, 0, REGION),
    )
    assert lines == [
        "2 stacks grow by 1.3 ± 0.1 MiB/min, 96% of all growth (23 snapshots from 0:01 to 1:01; 1 rose in one step)",
        "  1.1 ± 0.1 MiB/min since 42:00  planted::innermost(unsigned long) (inlined)  src/decode.cc:14 [server], id 00000000000022c4",
        "  117.2 ± 11.7 KiB/min since 42:00  planted::innermost(unsigned long) (inlined)  src/decode.cc:14 [server], id 00000000000002bc",
    ]


def test_what_has_no_owner() -> None:
    largest = (MappingSum("", 9_000_000, 3), MappingSum("/memfd:x", 4_096, 1))
    unowned = UnownedGrowth(UnownedPart.MAPPINGS, 20_000, 19_000, 21_000, MINUTE_42, 9_000_000, largest)
    lines = list(growth_lines(replace(profile(), sites=(), growth_span=SPAN, unowned=(unowned,))))
    text = (
        "the process grows by 1.1 ± 0.1 MiB/min since 42:00 in memory of no block and no region that was seen"
    )
    assert lines[1:] == [f"{text}: nameless 9,000,000 bytes in 3, /memfd:x 4,096 bytes in 1"]


def test_nothing_grows() -> None:
    line = "no stack grows (23 snapshots from 0:01 to 1:01; 1 rose and levelled off)"
    assert answer(judged(Trend.PLATEAU, 0, 5), judged(Trend.STEADY)) == [line]


def test_suppressed_growth_is_none() -> None:
    (line,) = answer(replace(judged(Trend.GROWS, 2_000, 700), suppressed_by="a"))
    assert line.startswith("no stack grows")


def test_too_few_snapshots_and_only_one() -> None:
    (line,) = answer(span=GrowthSpan(0, 0, 3, 5))
    assert line == "not judged: 3 snapshots, 5 are needed (measure longer, or say how often by --interval)"
    assert answer(span=None) == []


def test_more_than_are_named() -> None:
    lines = answer(*(judged(Trend.GROWS, 1_000 + i, i) for i in range(5)))
    assert len(lines) == 5
    assert lines[-1] == "  … and 2 more (--sort growth)"


def test_sorted_by_growth() -> None:
    sites = [judged(Trend.BURST, 9_000, 1), judged(Trend.GROWS, 11, 2), judged(Trend.GROWS, 23, 3)]
    assert [site.growth.rise for site in sorted_sites(sites, "growth") if site.growth] == [3, 2, 1]


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(0.05, "3.0 ± 0.6 B/min"), (1e7, "572.20 ± 0.00 MiB/min"), (1e9, "55.88 ± 0.00 GiB/min")],
)
def test_rates(bytes_per_s: float, text: str) -> None:
    assert rate_text(bytes_per_s, 0.01) == text
    assert rate_text(1000.0) == "58.6 KiB/min"
    assert rate_text(1000.0, run_s=2.0) == "2.0 KiB/run"


def test_words_of_one_site() -> None:
    assert site_growth(DECODE) == ""
    assert site_growth(judged(Trend.STEADY)) == "steady"
    assert clock(3_723 * 10**9) == "1:02:03"
