"""Compares the places of two profiles. Between two builds lines move and functions are renamed: a place is its function here."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import hypot
from os.path import basename

from memleak_android.host.profile.answer import AnswerState, Place
from memleak_android.host.profile.answering import growing_places
from memleak_android.host.profile.changes import CONFIDENCE, Held, PlaceChange, Rate, change_of, faster
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.runtime_sites import module_name

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
        changes += _change(before.get(names.get(key, key)), function, are_judged(old, new))
    found = {names.get(key, key) for key in after}
    for key, function in before.items():
        if key not in found:
            changes += _change(function, None, are_judged(old, new))
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
    return Rate(growth.bytes_per_s, (growth.high - growth.low) / 2) if growth else Rate()


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


def _change(old: _Function | None, new: _Function | None, are_judged: bool) -> Iterator[PlaceChange]:
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
