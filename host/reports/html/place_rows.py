"""The page's table of places: by growth where one grows, else by size."""

from collections.abc import Sequence
from typing import Any

from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.answering import counted_places, growing_places
from memleak_android.host.profile.profile import Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.profile.short_names import short_name
from memleak_android.host.reports.base import bounded
from memleak_android.host.reports.text.growth import trend_text
from memleak_android.host.reports.units import size_text

PLACES_MAX = 200
_OF_RUNTIME = "runtime"


def place_rows(profile: Profile) -> list[dict[str, Any]]:
    """share: of all growth in its unit, or of all that is held where nothing grows."""
    places = [place for place in counted_places(profile) if place.kind != _OF_RUNTIME]
    growing = growing_places(profile, places)
    others = [place for place in places if place.objects and not any(place is one for one in growing)]
    others.sort(key=lambda place: -place.space)
    return [_row(place, growing, places) for place in (*growing, *others)[:PLACES_MAX]]


def _row(place: Place, growing: Sequence[Place], places: Sequence[Place]) -> dict[str, Any]:
    grows = any(place is one for one in growing)
    of = [one for one in (growing if grows else places) if one.unit == place.unit]
    whole = sum(_weight(one, grows) for one in of)
    module = bounded(module_name(place.module)) if place.module else ""
    kind = f" ({bounded(place.kind)})" if place.kind != "user" else ""
    return {
        "name": bounded(short_name(place.function) or module or "no stack") + kind,
        "function": bounded(place.function),
        "source": f"{bounded(place.file)}:{place.line}" if place.file else module,
        "rate": place.growth.bytes_per_s if grows and place.growth else 0,
        "growth": trend_text(place.growth, place.unit),
        "space": place.space,
        "held": size_text(place.space, place.unit) if place.objects else "freed at exit",
        "objects": place.objects,
        "share": _weight(place, grows) / whole if whole and (grows or not growing) else 0,
    }


def _weight(place: Place, grows: bool) -> float:
    return place.growth.bytes_per_s if grows and place.growth else place.space
