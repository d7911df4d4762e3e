"""Compares two profiles site by site, and place by place: new, grown, shrunk, gone. Sampled figures within their error count as equal."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import hypot
from operator import add, or_
from os.path import basename
from typing import Any

from memleak_android.host.profile.answer import AnswerState, Place
from memleak_android.host.profile.answering import growing_places
from memleak_android.host.profile.changes import (
    CONFIDENCE,
    Difference,
    Held,
    Outcome,
    PlaceChange,
    Rate,
    SiteChange,
    change_of,
    faster,
)
from memleak_android.host.profile.field_types import NO_LEAKS, common_unit
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.profile import CallSite, Measurement, Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.profile.site_id import site_id

_Key = tuple[str, str, str]  # kind, file name of the module, function


@dataclass(frozen=True, slots=True)
class _Function:
    """All places of one function. squares: of the standard errors of its bytes; None = exact."""

    place: Place
    held: Held
    stacks: int
    rate: Rate
    squares: float | None


def are_judged(old: Profile, new: Profile) -> bool:
    """Whether the growth of both was judged, so that it can be compared."""
    return all(one.answer and one.growth_span and one.growth_span.is_judged for one in (old, new))


def rate_of(profile: Profile) -> Rate:
    """Of the whole program; 0 where it does not leak."""
    if profile.answer is None or profile.answer.state is not AnswerState.LEAKING:
        return Rate()
    return _rate(profile.answer.growth)


def compare_places(old: Profile, new: Profile, programs: tuple[str, str] | None) -> tuple[PlaceChange, ...]:
    """Sorted: the places that grow faster by the most, then those that hold more. programs: the file names of a renamed program."""
    before, after = _functions(old, programs), _functions(new, None)
    names = dict(_renamed_functions(before, after))
    changes = list[PlaceChange]()
    for key, function in after.items():
        changes += _place_change(before.get(names.get(key, key)), function, are_judged(old, new))
    found = {names.get(key, key) for key in after}
    for key, function in before.items():
        if key not in found:
            changes += _place_change(function, None, are_judged(old, new))
    return tuple(sorted(changes, key=_rank))


def _rank(change: PlaceChange) -> tuple[float, int, int, str]:
    rate = change.growth.bytes_per_s if change.growth and change.growth.is_significant else 0.0
    return -rate, -change.space, -change.objects, change.place.function


def _functions(profile: Profile, programs: tuple[str, str] | None) -> dict[_Key, _Function]:
    growing = set(map(id, growing_places(profile, profile.places)))
    errors = defaultdict[int, float](float)
    for site in profile.sites:
        if site.place is not None and site.stderr_space is not None:
            errors[site.place] += site.stderr_space**2
    found = dict[_Key, _Function]()
    for number, place in enumerate(profile.places):
        module = module_name(place.module)
        if programs and module == programs[0]:
            module = programs[1]
        rate = _rate(place.growth) if id(place) in growing else Rate()
        held = Held(place.space, place.objects)
        one = _Function(place, held, place.stacks, rate, errors.get(number))
        key = (place.kind, module, place.function)
        found[key] = _added(found[key], one) if key in found else one
    return found


def _rate(growth: Growth | None) -> Rate:
    return Rate(growth.bytes_per_s, growth.error) if growth else Rate()


def _added(one: _Function, other: _Function) -> _Function:
    squares = [each.squares for each in (one, other) if each.squares is not None]
    return _Function(
        max(one.place, other.place, key=lambda place: place.space),
        Held(one.held.space + other.held.space, one.held.objects + other.held.objects),
        one.stacks + other.stacks,
        Rate(one.rate.bytes_per_s + other.rate.bytes_per_s, hypot(one.rate.margin, other.rate.margin)),
        sum(squares) if squares else None,
    )


def _renamed_functions(
    before: dict[_Key, _Function], after: dict[_Key, _Function]
) -> Iterator[tuple[_Key, _Key]]:
    """(new key, old key): of one kind and source file one has gone and one has come, with as many blocks, or at all."""
    gone, come = (
        {key: each[key] for key in each if key not in other}
        for each, other in ((before, after), (after, before))
    )
    for with_count in (True, False):
        leavers, comers = _by_file(gone, with_count), _by_file(come, with_count)
        for file, keys in comers.items():
            if len(keys) == len(leavers.get(file, ())) == 1:
                yield keys[0], leavers[file][0]
                del come[keys[0]], gone[leavers[file][0]]


def _by_file(functions: dict[_Key, _Function], with_count: bool) -> dict[tuple[object, ...], list[_Key]]:
    found = defaultdict[tuple[object, ...], list[_Key]](list)
    for key, function in functions.items():
        if function.place.file:
            n_blocks = function.held.objects if with_count else 0
            found[*key[:2], basename(function.place.file), n_blocks].append(key)
    return found


def _place_change(old: _Function | None, new: _Function | None, are_judged: bool) -> Iterator[PlaceChange]:
    """Nothing where both are equal within the error of the samples, or of the rates of two leaks."""
    shown = new or old
    if shown is None:
        return
    before, after = (one.held if one else Held(0, 0) for one in (old, new))
    rate = faster(old.rate if old else Rate(), new.rate if new else Rate())
    squares = [one.squares for one in (old, new) if one and one.squares is not None]
    error = sum(squares) ** 0.5 if squares else None
    space, objects = after.space - before.space, after.objects - before.objects
    is_other = abs(space) > CONFIDENCE * error if error is not None else bool(space or objects)
    is_faster = are_judged and rate.is_significant
    if are_judged and old and new and old.rate.bytes_per_s and new.rate.bytes_per_s:
        is_other = False  # of two leaks the one that was measured for longer holds more
    if not is_other and not is_faster:
        return
    change = change_of(old, new, rate.bytes_per_s if is_faster else space or objects)
    one = PlaceChange(change, shown.place, before, after, shown.stacks, rate if are_judged else None)
    former = old.place.function if old and new and old.place.function != new.place.function else ""
    yield replace(
        one, former=former, stderr_space=None if error is None else round(error), unit=shown.place.unit
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """changes: largest growth first, largest loss last.
    unchanged: the number of sites that are not in `changes`.
    unattributed: blocks without a stack, before and after; they are in no site.
    places: () where one profile has none (of another version).
    """

    old: Profile
    new: Profile
    changes: tuple[SiteChange, ...]
    unchanged: int
    unattributed: tuple[Held, Held]
    difference: Difference
    places: tuple[PlaceChange, ...] = ()
    notes: tuple[str, ...] = ()


def compare(old: Profile, new: Profile) -> Comparison:
    """Compares by site id. Sites with one id are merged; a program that was renamed is the same program."""
    programs = _programs(old, new)
    sites = [_renamed(site, *programs) for site in old.sites] if programs else old.sites
    before, after = merged_sites(sites), merged_sites(new.sites)
    changes = list[SiteChange]()
    for id_ in dict.fromkeys((*after, *before)):
        change = _change(before.get(id_), after.get(id_))
        if change is not None:
            changes.append(change)
    changes.sort(key=lambda change: (-change.space, -change.objects, change.id))
    unattributed = [Held(p.totals.unattributed_space, p.totals.unattributed_objects) for p in (old, new)]
    return Comparison(
        old=old,
        new=new,
        changes=tuple(changes),
        unchanged=len(before.keys() | after.keys()) - len(changes),
        unattributed=(unattributed[0], unattributed[1]),
        difference=_difference(old, new, changes, unattributed[1].space - unattributed[0].space),
        places=compare_places(old, new, programs) if all(map(_has_places, (old, new))) else (),
        notes=tuple(_notes(old, new)),
    )


def _has_places(profile: Profile) -> bool:
    return bool(profile.places or not profile.sites)


def _difference(old: Profile, new: Profile, changes: Iterable[SiteChange], unattributed: int) -> Difference:
    """Growth counts before sums, and of two programs that leak alone: the one that ran longer holds more."""
    space = sum(change.space for change in changes if change.kind not in NO_LEAKS) + unattributed
    before, after = rate_of(old), rate_of(new)
    growth = faster(before, after) if are_judged(old, new) else None
    leaks = bool(growth and before.bytes_per_s and after.bytes_per_s)
    more = growth.bytes_per_s if growth and growth.is_significant else 0 if leaks else space
    outcome = Outcome.WORSE if more > 0 else Outcome.BETTER if more < 0 else Outcome.SAME
    both = (before, after) if leaks else (None, None)
    unit = common_unit(site.unit for profile in (old, new) for site in profile.sites)
    return Difference(outcome, space, growth, unit, *both)


def _programs(old: Profile, new: Profile) -> tuple[str, str] | None:
    """File names of both programs, if they differ and both are in stacks; None = nothing to rename."""
    names = []
    for profile in (old, new):
        words = profile.target.command.split(maxsplit=1)
        modules = {module_name(frame.module) for site in profile.sites for frame in site.frames}
        names.append((module_name(words[0]) if words else "", modules))
    (before, of_old), (after, of_new) = names
    is_other = before != after and before in of_old - of_new and after in of_new - of_old
    return (before, after) if is_other else None


def _renamed(site: CallSite, before: str, after: str) -> CallSite:
    """A site of the program `before` as one of `after`. A site whose id is not made of its frames is unchanged."""
    if all(module_name(frame.module) != before for frame in site.frames) or site_id(site.frames) != site.id:
        return site
    frames = [replace(f, module=after) if module_name(f.module) == before else f for f in site.frames]
    return replace(site, id=site_id(frames))


def merged_sites(sites: Iterable[CallSite]) -> dict[str, CallSite]:
    """By id. Sites with one id (other lines of the same functions, other processes) are merged."""
    found: dict[str, CallSite] = {}
    for site in sites:
        found[site.id] = _merged(found[site.id], site) if site.id in found else site
    return found


def _merged(one: CallSite, other: CallSite) -> CallSite:
    merged = {name: merge(getattr(one, name), getattr(other, name)) for name, merge in _MERGES.items()}
    return replace(one, **merged)


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _error(a: int | None, b: int | None) -> int | None:
    known = [error for error in (a, b) if error is not None]
    return round(math.hypot(*known)) if known else None


def _first(a: Any, b: Any) -> Any:
    return a


# How two sites with one id become one, by field of CallSite: test_comparison.py names a field that is missing here.
_MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "id": _first,
    "inuse_space": add,
    "inuse_objects": add,
    "alloc_space": _sum,
    "alloc_objects": _sum,
    "oldest_ns": max,
    "kind": lambda a, b: a if a == b else "user",
    "end": _first,
    "frames": _first,
    "frames_left_out": _first,
    "stderr_space": _error,
    "growth": _first,
    "approximate": or_,
    "blocks": add,
    "suppressed_by": _first,
    "leaks": _first,
    "ages": lambda a, b: tuple(map(sum, zip(a, b, strict=False))),
    "processes": _first,
    "place": _first,
    "unit": _first,
}


def _change(old: CallSite | None, new: CallSite | None) -> SiteChange | None:
    """None = equal, or within the error of the samples."""
    shown = new or old
    if shown is None:
        return None
    before, after = (Held(s.inuse_space, s.inuse_objects) if s else Held(0, 0) for s in (old, new))
    errors = [s.stderr_space for s in (old, new) if s is not None and s.stderr_space is not None]
    error = math.hypot(*errors) if errors else None
    space, objects = after.space - before.space, after.objects - before.objects
    if (error is None and not space and not objects) or (
        error is not None and abs(space) <= CONFIDENCE * error
    ):
        return None
    rounded = None if error is None else round(error)
    change = change_of(old, new, space or objects)
    return SiteChange(shown.id, change, shown.kind, before, after, shown.frames, rounded, shown.unit)


def _notes(old: Profile, new: Profile) -> Iterator[str]:
    """Reasons why the profiles compare badly."""
    for name, which in (("the old one", old), ("the new one", new)):
        if which.measurement is Measurement.INCOMPLETE:
            yield f"{name} is incomplete: what it lacks can look like a difference"
    if programs := _programs(old, new):
        yield f"the programs {programs[0]} and {programs[1]} are compared as one"
    if old.target.sample_bytes != new.target.sample_bytes:
        yield f"sampled differently: --sample-bytes {old.target.sample_bytes} and {new.target.sample_bytes}"
    if old.target.arch != new.target.arch:
        yield f"of different machines: {old.target.arch} and {new.target.arch}; stacks can differ"
    if old.target.tracer != new.target.tracer:
        yield f"by different tracers: {old.target.tracer} and {new.target.tracer}"
    error = any(site.stderr_space is not None for site in (*old.sites, *new.sites))
    if error:
        yield f"estimates: differences within {CONFIDENCE:.0f} standard errors count as none"
