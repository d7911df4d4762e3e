"""Names the packages of places without a line: those that grow fastest, then those that hold most."""

from collections.abc import Sequence
from dataclasses import replace

from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.generated_code import is_generated
from memleak_android.host.profile.growth import Trend
from memleak_android.host.profile.runtime_sites import is_runtime
from memleak_android.host.stacks.modules import ModuleFile
from memleak_android.host.symbols.packages import PackageSearch

MODULES_MAX = 20  # more than a first screen shows


def with_packages(
    places: Sequence[Place], files: Sequence[ModuleFile], search: PackageSearch
) -> tuple[Place, ...]:
    """The C and C++ runtime's modules need none."""
    by_path = {file.path: file for file in files}
    ranked = sorted(places, key=lambda place: (-_rate(place), -place.space))
    modules = dict.fromkeys(
        place.module
        for place in ranked
        if not place.file and place.module in by_path and not is_generated(place.module)
    )
    shown = [by_path[module] for module in modules if not is_runtime(module)][:MODULES_MAX]
    found = {file.path: package for file, package in zip(shown, search.find(shown), strict=True) if package}
    return tuple(
        replace(place, package=found[place.module]) if not place.file and place.module in found else place
        for place in places
    )


def _rate(place: Place) -> float:
    growth = place.growth
    return growth.bytes_per_s if growth is not None and growth.trend is Trend.GROWS else 0.0
