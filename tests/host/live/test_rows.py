"""The view's message of a profile, the order of its rows, and the sums of callers."""

from dataclasses import replace

import pytest

from memleak_android.host.live.messages import Sites, encode
from memleak_android.host.live.rows import COLUMNS, Order, columns_for, duration, ordered
from memleak_android.host.live.screens import callers
from memleak_android.host.live.view import (
    FRAMES_MAX,
    NAME_MAX,
    SITES_MAX,
    LeakScan,
    chosen_sites,
    site_key,
    sites_message,
)
from memleak_android.host.profile.growth import Growth, Trend
from memleak_android.host.profile.profile import LeakKind, LeakSum
from memleak_android.host.profile.runtime_sites import PYTHON_FRAMES
from tests.support.builders.profiles import (
    CODEC,
    DECODE,
    MALLOC,
    PARTIAL,
    REGION,
    SERVER,
    START,
    frame,
    profile,
    site,
)

SMALL = site("51", 11, 97, MALLOC, *START)
GROWTH = Growth(Trend.GROWS, 1_000.0, 900.0, 1_100.0, 3_000_000_000, 9_001)


def test_a_site_equals_the_reports() -> None:
    message = sites_message(profile(sites=(replace(DECODE, growth=GROWTH), PARTIAL, REGION)), 3)
    assert (message.space, message.objects, message.unattributed_space) == (101_211, 29, 207)
    by_id = {one.id: one for one in message.sites}
    decode, partial, region = (by_id[site.id] for site in (DECODE, PARTIAL, REGION))
    assert (decode.space, decode.objects, decode.rate) == (23_207, 23, 60_000.0)
    assert decode.growth == "58.6 ± 5.9 KiB/min"
    assert decode.verdict == "grows" and not decode.end and region.kind == "mmap"
    assert [message.frames[n].function for n in decode.frames][:2] == [
        "malloc",
        "planted::innermost(unsigned long) (inlined)",
    ]
    assert message.frames[decode.frames[decode.own]].source == "src/decode.cc:14"
    assert partial.end.startswith("STACK_TRUNCATED: the rest lies outside") and "approximate" in partial.about
    assert partial.stderr_space == 31 and "± 31" in partial.about
    assert message.frames[partial.frames[1]].function == "libcodec.so+0x123f"


def test_code_outside_of_a_function_has_its_file() -> None:
    """80 columns have none for it."""
    module = replace(frame(SERVER, "<module>", 0, "/srv/shop/app.py:4"), module=PYTHON_FRAMES)
    message = sites_message(profile(sites=(site("52", 11, 97, MALLOC, module),)), 1)
    column = next(one for one in COLUMNS if one.key == "function")
    assert column.text(message.sites[0], message) == "<module> app.py:4"


def test_growth_by_runs_is_by_run() -> None:
    message = sites_message(profile(sites=(replace(DECODE, growth=replace(GROWTH, run_s=3.0)),)), 1)
    assert (message.sites[0].rate, message.sites[0].growth) == (3_000.0, "2.9 ± 0.3 KiB/run")


def test_the_kind_of_lost_blocks_is_the_worst() -> None:
    kinds = (LeakSum(LeakKind.STILL_REACHABLE, 5, 1), LeakSum(LeakKind.DEFINITELY_LOST, 7, 1))
    looked = LeakScan(42_000_000_000, {site_key(DECODE): kinds})
    message = sites_message(profile(sites=(replace(DECODE, growth=GROWTH), SMALL)), 2, looked)
    assert [one.verdict for one in message.sites] == ["definitely lost", ""]
    said = "at 0:42 definitely lost 7 bytes in 1 allocation, still reachable 5 bytes"
    assert said in message.sites[0].about


def test_sites_of_one_id_keep_their_own_kinds() -> None:
    """Two calls of one function have one id, and return to two addresses."""
    first, *rest = DECODE.frames
    other = replace(DECODE, frames=(replace(first, address=first.address + 8), *rest))
    lost, reachable = (LeakSum(kind, 8, 1) for kind in (LeakKind.DEFINITELY_LOST, LeakKind.STILL_REACHABLE))
    judged = profile(sites=(replace(DECODE, leaks=(lost,)), replace(other, leaks=(reachable,))))
    message = sites_message(profile(sites=(DECODE, other)), 2, LeakScan.of(judged))
    assert sorted(line.verdict for line in message.sites) == ["definitely lost", "still reachable"]


def test_the_largest_the_most_and_the_fastest_are_sent() -> None:
    many = [site(f"{n}", 10_000 - n, 1, MALLOC) for n in range(2 * SITES_MAX)]
    fast = replace(site("fa57", 1, 1, MALLOC), growth=GROWTH)
    steady = replace(site("57ead", 1, 1, MALLOC), growth=replace(GROWTH, trend=Trend.STEADY))
    small = site("b10c", 2, 99_991, MALLOC)
    chosen = chosen_sites([*many, small, steady, fast])
    assert len(chosen) == SITES_MAX and {fast.id, small.id} <= {one.id for one in chosen}
    assert chosen[0].inuse_space == 10_000 and steady.id not in {one.id for one in chosen}


def test_names_are_bounded_and_printable() -> None:
    bad = frame(CODEC, "\x1b[2J[red]" + "x" * (1 << 20), source="\x9b1m.c:3")
    hostile = replace(bad, module="/tmp/\x1b]0;owned\x07[bold]lib.so")
    message = sites_message(profile(sites=(site("bad", 7, 1, MALLOC, hostile),)), 1)
    line = message.frames[message.sites[0].frames[1]]
    assert line.function.startswith("\\x1b[2J[red]xxx") and len(line.function) < NAME_MAX + 100
    assert line.module == "\\x1b]0;owned\\x07[bold]lib.so" and line.source == "\\x9b1m.c:3"
    assert len(encode(message)) < 4_000


def test_a_message_is_bounded_however_many_frames_there_are() -> None:
    deep = [site(f"{n}", 7, 1, *(frame(CODEC, "f", n * 1_000 + i) for i in range(500))) for n in range(50)]
    message = sites_message(profile(sites=tuple(deep)), 50)
    assert len(message.frames) == FRAMES_MAX
    assert any(one.end == "more frames than can be shown" for one in message.sites)
    assert all(number < FRAMES_MAX for one in message.sites for number in one.frames)


@pytest.fixture
def sites() -> Sites:
    zoo = frame(SERVER, "Zoo", source="/src/[a].c:3")
    fast = replace(site("fa57", 5, 7, MALLOC, zoo, *START), growth=GROWTH)
    many = site("11", 11, 97, MALLOC, frame(SERVER, "alpha"), *START)
    return sites_message(profile(sites=(replace(DECODE, growth=None), fast, many)), 3)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("space", ["dec0d", "11", "fa57"]),
        ("objects", ["11", "dec0d", "fa57"]),
        ("rate", ["fa57", "dec0d", "11"]),
        ("oldest", ["dec0d", "11", "fa57"]),
        ("function", ["11", "dec0d", "fa57"]),
        ("verdict", ["fa57", "dec0d", "11"]),
    ],
)
def test_order(sites: Sites, key: str, expected: list[str]) -> None:
    ids = [one.id.lstrip("0") for one in ordered(sites, Order(key), "")]
    assert ids == expected
    back = Order(key).by(key)
    assert [one.id.lstrip("0") for one in ordered(sites, back, "")] == expected[::-1]
    assert back.by("space") == Order("space", key == "space" and not back.is_reversed)


@pytest.mark.parametrize(
    ("wanted", "n"),
    [("", 3), ("zoo", 1), ("[A].C", 1), ("decode.cc", 1), ("LIBC", 3), ("dec0d", 1), ("nowhere", 0)],
)
def test_filter_looks_at_all_frames(sites: Sites, wanted: str, n: int) -> None:
    assert len(ordered(sites, Order(), wanted)) == n


def test_callers_hold_what_their_stacks_hold(sites: Sites) -> None:
    root = callers(sites)
    assert (root.space, root.objects) == (23_207 + 5 + 11, 23 + 7 + 97)
    (start,) = root.largest_first
    assert sites.frames[start.frame].function == "_start+0x21" and start.space == root.space
    (libc,) = start.largest_first
    assert [(sites.frames[one.frame].function, one.space) for one in libc.largest_first] == [
        ("main+0x47", 23_207),
        ("alpha+0x0", 11),
        ("Zoo+0x0", 5),
    ]
    assert callers(sites, "zoo").space == 5
    # regions are not callers
    assert callers(sites_message(profile(sites=(REGION,)), 1)).space == 0


def test_columns_fit_the_width() -> None:
    assert [one.key for one in columns_for(40)] == ["space", "objects", "function"]
    assert [one.key for one in columns_for(80)] == ["space", "objects", "rate", "function"]
    assert columns_for(200) == list(COLUMNS)
    for width in range(40, 140):
        assert sum(one.width + 2 for one in columns_for(width)) <= width, width


def test_durations() -> None:
    shown = {0.4: "0 s", 59: "59 s", 61: "1:01", 3_723: "1:02:03", 864_000: "240:00:00"}
    assert {seconds: duration(seconds) for seconds in shown} == shown
