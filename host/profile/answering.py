"""A profile → the answer. Three levels are judged: the program's sum, places, stacks (which places add up)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import hypot

from memleak_android.host.profile.answer import Answer, AnswerState, Place
from memleak_android.host.profile.coverage import Answer as Met
from memleak_android.host.profile.coverage import Condition
from memleak_android.host.profile.field_types import BYTE, NO_LEAKS
from memleak_android.host.profile.growth import Growth, Trend, UnownedGrowth, UnownedPart, grows
from memleak_android.host.profile.profile import Profile

# What grows by less is named in one line, and no leak: of all that rose, and of what is held.
SHARE_OF_RISE_MIN = 0.01
SHARE_OF_HELD_MIN = 0.001
OLDER_SHARE_MIN = 0.5  # of growth, that older blocks make up for: above it the answer is not known
# Where one of these is not met, memory may have grown unseen.
_SEES_GROWTH = (Condition.SESSION, Condition.FUNCTIONS, Condition.PROGRAMS, Condition.CALLS, Condition.RECORD)
_BEYOND_BLOCKS = {
    UnownedPart.REGIONS: "its memory grows, in too few regions of mmap to be judged: measure longer",
    UnownedPart.RESIDENT: "its resident memory grows, in blocks and regions that it holds already: measure longer",
    UnownedPart.ALLOCATOR: "the allocator's memory grows beyond the blocks: it keeps it, or calls were not seen",
}


def answer_of(profile: Profile) -> Answer:
    """Of a finished session. Suppressed sites do not count."""
    places = counted_places(profile)
    growing = growing_places(profile, places)
    if rates := _rates(profile, places, growing):
        if why := _turns_over(profile, _sum(rates)):
            return Answer(AnswerState.CANNOT_TELL, why)
        spread = 0 if growing else _spread(places, profile.heap_growth)
        unit = leading_unit(profile, growing)
        return Answer(AnswerState.LEAKING, "", _sum(rates), len(growing), spread, unit)
    span = profile.growth_span
    if span is None or not span.is_judged:
        return _of_short_session(profile)
    if why := unseen(profile) or _left_out(profile) or _beyond_blocks(profile) or _still_rises(profile):
        return Answer(AnswerState.CANNOT_TELL, why)
    return Answer(AnswerState.NOT_GROWING, growth=profile.heap_growth)


def counted_places(profile: Profile) -> list[Place]:
    """Without those whose stacks all match suppressions."""
    counted = {site.place for site in profile.sites if not site.suppressed_by}
    left_out = {site.place for site in profile.sites if site.suppressed_by} - counted
    return [place for number, place in enumerate(profile.places) if number not in left_out]


def held_places(profile: Profile) -> list[Place]:
    """Those whose memory a program can be asked to give back."""
    return [place for place in counted_places(profile) if place.kind not in NO_LEAKS]


def growing_places(profile: Profile, places: Sequence[Place]) -> list[Place]:
    """Fastest first, bytes before what is counted. A share counts among places of the same unit."""
    risen, held = defaultdict[str, float](float), defaultdict[str, int](int)
    for one in places:
        held[one.unit] += one.space
        risen[one.unit] += max(0, one.growth.rise) if one.growth is not None else 0
    held[BYTE] = _held(profile)
    least = {unit: max(SHARE_OF_RISE_MIN * risen[unit], SHARE_OF_HELD_MIN * held[unit]) for unit in held}
    return [one for one in _that_grow(places) if one.growth and one.growth.rise >= least[one.unit]]


def slow_places(profile: Profile, places: Sequence[Place]) -> list[Place]:
    """Those that grow, by too little to be growing_places()."""
    growing = set(map(id, growing_places(profile, places)))
    return [one for one in _that_grow(places) if id(one) not in growing]


def _that_grow(places: Sequence[Place]) -> list[Place]:
    found = [one for one in places if grows(one.growth)]
    return sorted(found, key=lambda one: (one.unit != BYTE, -(one.growth.bytes_per_s if one.growth else 0)))


def _held(profile: Profile) -> int:
    """Of a process that was attached to what is resident, if that is more: blocks from before are not counted, yet held."""
    resident = sum(use.heap for use in profile.memory)
    return max(profile.totals.inuse_space, resident if profile.target.attached else 0)


def leading_unit(profile: Profile, growing: Sequence[Place]) -> str:
    """Of the program's growth: growth of another unit is not part of its sum."""
    is_counted = growing and growing[0].unit != BYTE and not profile.unowned
    return growing[0].unit if is_counted else BYTE


def _rates(profile: Profile, places: Sequence[Place], growing: Sequence[Place]) -> list[Growth]:
    """Of the places that grow, or of the program where they do not explain it; and of memory without an owner."""
    rates = _rates_of_places(profile, places, growing)
    for each in profile.unowned:
        if each.part is UnownedPart.MAPPINGS:
            rates.append(_of_memory(each))
    return rates


def _of_memory(each: UnownedGrowth) -> Growth:
    return Growth(Trend.GROWS, each.bytes_per_s, each.low, each.high, each.since_ns, each.rise)


def _rates_of_places(profile: Profile, places: Sequence[Place], growing: Sequence[Place]) -> list[Growth]:
    """Of one unit. Of regions that are mostly reserved, or that many functions take, what is written to."""
    unit = leading_unit(profile, growing)
    growing = [one for one in growing if one.unit == unit]
    rates = [one.growth for one in growing if one.growth is not None]
    for each in profile.unowned:
        is_of_places = each.part is UnownedPart.REGIONS and any(one.kind == "mmap" for one in growing)
        if is_of_places or each.part is UnownedPart.GROWING_REGIONS:
            rates = [one.growth for one in growing if one.growth is not None and one.kind != "mmap"]
            rates.append(_of_memory(each))
    in_all = profile.heap_growth
    is_whole = unit == BYTE and len(places) == len(profile.places)
    matters = in_all is not None and in_all.rise >= SHARE_OF_HELD_MIN * _held(profile)
    if (
        in_all
        and grows(in_all)
        and matters
        and is_whole
        and in_all.low > sum(each.bytes_per_s for each in rates)
    ):
        return [in_all]
    return rates


def _spread(places: Sequence[Place], in_all: Growth | None) -> int:
    """Places that rose; 0 = the heap does not grow, or they explain less than half of what it rose by."""
    rises = [one.growth.rise for one in places if one.growth is not None and one.growth.rise > 0]
    return len(rises) if in_all is not None and grows(in_all) and sum(rises) >= in_all.rise / 2 else 0


def growth_of_places(profile: Profile) -> Growth | None:
    """Of all that grows and has stacks; None = nothing does. Suppressed sites do not count."""
    places = counted_places(profile)
    rates = _rates_of_places(profile, places, growing_places(profile, places))
    return _sum(rates) if rates else None


def _sum(rates: Sequence[Growth]) -> Growth:
    """Errors add as independent ones do."""
    rate = sum(each.bytes_per_s for each in rates)
    below = hypot(*(each.bytes_per_s - each.low for each in rates))
    above = hypot(*(each.high - each.bytes_per_s for each in rates))
    return replace(
        rates[0],
        bytes_per_s=rate,
        low=rate - below,
        high=rate + above,
        since_ns=min(each.since_ns for each in rates),
        rise=sum(each.rise for each in rates),
    )


def _of_short_session(profile: Profile) -> Answer:
    if profile.target.exit_status is not None:
        if why := unseen(profile):
            return Answer(AnswerState.CANNOT_TELL, why)
        if held_places(profile) or profile.totals.unattributed_objects:
            return Answer(AnswerState.HELD_AT_EXIT)
        if why := _beyond_blocks(profile):
            return Answer(AnswerState.CANNOT_TELL, why)
        if not profile.target.attached:
            return Answer(AnswerState.NOT_GROWING)
    span = profile.growth_span
    taken, needed = (span.instants, span.needed) if span else (1, 0)
    snapshots = f"{taken} snapshot{'s' * (taken != 1)}" + (f", {needed} are needed" if needed else "")
    return Answer(
        AnswerState.CANNOT_TELL, f"measured for {profile.duration_ns / 1e9:.1f} s only: {snapshots}"
    )


def _turns_over(profile: Profile, growth: Growth) -> str:
    """Why the growth may be none: blocks from before the session, which were not counted, went meanwhile."""
    older = sum(each.bytes_per_s for each in profile.unowned if each.part is UnownedPart.OLDER)
    if older < OLDER_SHARE_MIN * growth.bytes_per_s:
        return ""
    return (
        "its new blocks may replace older ones, which went as fast (a full cache does so): measure longer than they live,"
        " or from the start (-- CMD)"
    )


def unseen(profile: Profile) -> str:
    """Why memory may have grown, or be held, unseen; "" = it was seen."""
    return _reason(profile, _SEES_GROWTH, (Met.UNKNOWN, Met.NO))


def _left_out(profile: Profile) -> str:
    """Why a part of the program was not measured on purpose (Python's objects by BPF); "" = all was. That part may grow."""
    return _reason(profile, (Condition.PROGRAMS,), (Met.TOLERATED,))


def _beyond_blocks(profile: Profile) -> str:
    """Why growth cannot be told though no block and no region grows; "" = the kernel's figures do not grow either."""
    beyond = [_BEYOND_BLOCKS[each.part] for each in profile.unowned if each.part in _BEYOND_BLOCKS]
    return next(iter(beyond), "") or _reason(profile, (Condition.BALANCE,), (Met.UNKNOWN,))


def _still_rises(profile: Profile) -> str:
    """Why the start may hide growth; "" = it does not. A process that was attached to has started before."""
    growth = profile.heap_growth
    if growth is None or growth.trend is not Trend.RISES or profile.target.attached:
        return ""
    return "its heap still rises at the end, as a program does that starts up: measure longer"


def _reason(profile: Profile, conditions: Sequence[Condition], answers: Sequence[Met]) -> str:
    """The first for one of these answers to one of these conditions; "" = none."""
    found = (one for one in profile.coverage if one.condition in conditions and one.answer in answers)
    return next((reason for finding in found for reason in finding.reasons), "")
