"""Sites that are new, grown, shrunk, gone or unchanged."""

import json
from dataclasses import fields, replace

import pytest

from memleak_android.host.profile import comparison
from memleak_android.host.profile.answer import Answer, AnswerState
from memleak_android.host.profile.changes import Change
from memleak_android.host.profile.comparison import compare, merged_sites
from memleak_android.host.profile.growth import Growth, GrowthSpan, Trend
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.profile.site_id import site_id
from tests.support.builders.profiles import (
    CODEC,
    DECODE,
    PARTIAL,
    POOL,
    REGION,
    SERVER,
    STDIO,
    frame,
    profile,
)
from tests.support.goldens import assert_golden
from tests.support.written import difference


def changes(old: Profile, new: Profile) -> list[tuple[str, Change, int, int]]:
    return [(one.id, one.change, one.space, one.objects) for one in compare(old, new).changes]


def of(*sites: CallSite) -> Profile:
    return profile(sites=sites)


def changed_profile() -> Profile:
    """profile() with one site of each change."""
    leak = CallSite("00000000000001ea", 61, 1, None, None, 5, "user", "ROOT", (frame(CODEC, "leak()"),))
    grown = replace(DECODE, inuse_space=DECODE.inuse_space + 2018, inuse_objects=25)
    shrunk = replace(REGION, inuse_space=REGION.inuse_space - 4096)
    made = of(grown, POOL, shrunk, leak, PARTIAL)
    return replace(made, totals=replace(made.totals, inuse_space=99_194, inuse_objects=30))


def test_a_profile_is_the_same_as_itself() -> None:
    comparison = compare(profile(), profile())
    assert (comparison.changes, comparison.unchanged) == ((), 5)


def test_a_program_that_was_built_by_another_name() -> None:
    """Its own sites are the same; where no stack has the name of what was started, nothing is taken for another."""

    def built_as(name: str, *functions: str) -> Profile:
        own, take = replace(frame(SERVER, "main"), module=f"/out/{name}"), frame(CODEC, "take()")
        stacks = [(take, replace(own, function=one), own) for one in functions]
        sites = [CallSite(site_id(one), 64, 2, None, None, 5, "user", "ROOT", one) for one in stacks]
        made = of(*sites)
        return replace(made, target=replace(made.target, command=f"./out/{name} --port 80"))

    comparison = compare(built_as("server", "f()", "g()"), built_as("server-2.1", "f()", "g()", "leak()"))
    assert [(one.change, one.frames[1].function, one.objects) for one in comparison.changes] == [
        (Change.NEW, "leak()", 2)
    ]
    assert comparison.unchanged == 2
    assert "the programs server and server-2.1 are compared as one" in comparison.notes
    other = replace(built_as("tool", "f()"), target=built_as("server", "f()").target)  # started by a script
    assert len(compare(built_as("server", "f()"), other).changes) == 2


def test_each_change() -> None:
    assert changes(profile(), changed_profile()) == [
        (DECODE.id, Change.GROWN, 2018, 2),
        ("00000000000001ea", Change.NEW, 61, 1),
        (REGION.id, Change.SHRUNK, -4096, 0),
        (STDIO.id, Change.GONE, -4096, -1),
    ]
    assert compare(profile(), changed_profile()).unchanged == 2


def test_the_reverse_comparison_is_the_opposite() -> None:
    there, back = compare(profile(), changed_profile()), compare(changed_profile(), profile())
    assert {one.id: -one.space for one in there.changes} == {one.id: one.space for one in back.changes}


def test_as_many_bytes_in_more_blocks_are_a_change() -> None:
    assert changes(of(DECODE), of(replace(DECODE, inuse_objects=29))) == [(DECODE.id, Change.GROWN, 0, 6)]


def test_sites_that_share_an_id_are_one() -> None:
    half = replace(DECODE, inuse_space=DECODE.inuse_space // 2, inuse_objects=11)
    rest = replace(DECODE, inuse_space=DECODE.inuse_space - half.inuse_space, inuse_objects=12)
    assert changes(of(DECODE), of(rest, half)) == []
    (merged,) = merged_sites((half, rest)).values()
    assert (merged.alloc_space, merged.alloc_objects) == (2 * 102_919, 2 * 102)


def test_estimates_within_their_error_are_the_same() -> None:
    old = replace(DECODE, inuse_space=100_000, stderr_space=3_000)
    # 3 × √(3000² + 3000²) = 12,728
    for space, count in ((112_727, 0), (112_729, 1), (87_273, 0), (87_271, 1)):
        new = replace(old, inuse_space=space)
        assert len(changes(of(old), of(new))) == count, space
    assert changes(of(), of(replace(old, stderr_space=33_334))) == []
    assert changes(of(), of(replace(old, stderr_space=33_333))) == [(DECODE.id, Change.NEW, 100_000, 23)]


def test_what_makes_them_hard_to_compare_is_said() -> None:
    other = profile(target=replace(profile().target, arch="arm64", sample_bytes=4096, tracer="preload"))
    assert compare(profile(), other).notes == (
        "the old one is incomplete: what it lacks can look like a difference",
        "the new one is incomplete: what it lacks can look like a difference",
        "sampled differently: --sample-bytes 0 and 4096",
        "of different machines: x86_64 and arm64; stacks can differ",
        "by different tracers: bpf and preload",
        "estimates: differences within 3 standard errors count as none",
    )


def test_text() -> None:
    assert_golden(difference("text", profile(), changed_profile()), "diff.txt")


def judged(made: Profile, rate: float) -> Profile:
    """A profile whose program grows by so many bytes per second, ± 100; 0 = does not grow."""
    growth = Growth(Trend.GROWS, rate, rate - 100, rate + 100, 0, 9_000)
    answer = Answer(AnswerState.LEAKING, growth=growth) if rate else Answer(AnswerState.NOT_GROWING)
    return replace(made, growth_span=GrowthSpan(0, 9, 5, 5), answer=answer)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (of(DECODE), of(DECODE), "SAME  no difference"),
        (of(DECODE), of(), "BETTER  holds 22.7 KiB less: stacks 1 gone"),
        (of(DECODE), of(DECODE, REGION), "SAME  no difference"),
        (judged(of(DECODE), 0), judged(of(), 9_000), "WORSE  grows by 527.3 ± 5.9 KiB/min more, holds 22.7 KiB less: stacks 1 gone"),
        (judged(of(), 9_000), judged(of(DECODE), 0), "BETTER  grows by 527.3 ± 5.9 KiB/min less, holds 22.7 KiB more: stacks 1 new"),
        (judged(of(), 9_000), judged(of(), 9_100), "SAME  as before: both leak, 527.3 ± 5.9 KiB/min before and 533.2 ± 5.9 KiB/min now"),
        (of(), judged(of(), 9_000), "SAME  no difference"),  # the old one was too short to judge
    ],
)  # fmt: skip
def test_the_first_line_says_what_got_worse(old: Profile, new: Profile, expected: str) -> None:
    assert difference("text", old, new).splitlines()[0] == expected


def test_text_shows_as_many_as_are_asked_for() -> None:
    output = difference("text", profile(), changed_profile(), top=1)
    assert output.count("id ") == 2
    assert output.count("… 1 more (-T 0 shows all)") == 2
    assert difference("text", profile(), changed_profile(), top=0).count("id ") == 4


def test_json() -> None:
    made = json.loads(difference("json", profile(), changed_profile()))
    assert made["schema"] == "memleak-android/diff/1"
    assert [(site["id"], site["change"], site["new"]["space"] - site["old"]["space"]) for site in made["sites"]] == [
        (one.id, one.change, one.space) for one in compare(profile(), changed_profile()).changes
    ]  # fmt: skip
    assert (made["old"], made["new"]["space"]) == ({"space": 101_211, "objects": 29}, 99_194)


def test_every_field_of_a_site_is_merged() -> None:
    assert {field.name for field in fields(CallSite)} == comparison._MERGES.keys()
