"""Data of the HTML page: trees, sites, modules, threads. One result, or two compared."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memleak_android.host.profile.answer import Place
from memleak_android.host.profile.answering import counted_places, growing_places
from memleak_android.host.profile.comparison import Comparison, merged_sites
from memleak_android.host.profile.culprit import Role, responsible_frame, roles
from memleak_android.host.profile.fleet_profile import OnlyOn, SitePrevalence, VersionChange
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Measurement, PastSite, ProcessSum, Profile
from memleak_android.host.profile.runtime_sites import module_name
from memleak_android.host.profile.short_names import short_name
from memleak_android.host.profile.sort_orders import growth_rate
from memleak_android.host.reports.base import amount, bounded, frame_text, leaks_text, source_line
from memleak_android.host.reports.export.exported import display_name, heap_sites
from memleak_android.host.reports.html.flame_tree import (
    FOLDED,
    STACKS_MAX,
    FlatTree,
    LeftOut,
    WeightedStack,
    flat_tree,
)
from memleak_android.host.reports.text.answer import answer_text, measured_line
from memleak_android.host.reports.text.by_place import package_text
from memleak_android.host.reports.text.comparison import difference_line
from memleak_android.host.reports.text.gate import gate_text
from memleak_android.host.reports.text.growth import growth_lines, site_growth, trend_text
from memleak_android.host.reports.text.memory import memory_line
from memleak_android.host.reports.text.past import ages_text, peak_line
from memleak_android.host.reports.text.processes import process_names, process_text
from memleak_android.host.reports.units import count_text, plural, size_text

SITES_MAX = 1_000
MEMORIES_MAX = 4  # processes in the head of the page; report.json has them all
FRAMES_MAX = 100
MODULES_MAX = 200
PROCESSES_MAX = 1_000
SHARES_MAX = 100  # processes by which a site is found
TIMELINE_SITES_MAX = 9
_FOLDED_ROLES = (Role.LIBRARY, Role.SCRIPT, Role.INTERPRETER, Role.EVALUATES)


Stacked = CallSite | PastSite | SitePrevalence | VersionChange | OnlyOn


@dataclass(frozen=True, slots=True)
class WeightedSite:
    """weights: bytes and blocks; of a comparison those of the new result, then those of the old one."""

    site: CallSite
    weights: tuple[int, ...]
    change: str = ""


def profile_data(profile: Profile) -> dict[str, Any]:
    sites = [WeightedSite(site, (site.inuse_space, site.inuse_objects)) for site in heap_sites(profile)]
    regions = [site for site in profile.sites if site.kind == "mmap"]
    more = [WeightedSite(site, (site.inuse_space, site.inuse_objects)) for site in regions]
    return _data(profile, sites, more, 2) | {
        "title": _subject(profile),
        "facts": _facts(profile),
        "answer": answer_text(profile),
        "state": str(profile.answer.state) if profile.answer else "",
        **gate_and_measurement(profile),
        "notes": [bounded(note) for note in profile.notes],
        "places": place_rows(profile),
        "isDiff": False,
    }


def gate_and_measurement(profile: Profile) -> dict[str, Any]:
    return {
        "isOverLimit": profile.is_over_limit,
        "why": gate_text(profile.gate) if profile.gate else "",
        "measured": measured_line(profile),
        "isComplete": profile.measurement is Measurement.COMPLETE,
    }


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    old, new = (merged_sites(heap_sites(one)) for one in (comparison.old, comparison.new))
    changes = {change.id: str(change.change) for change in comparison.changes}
    sites = []
    for site_id in dict.fromkeys((*new, *old)):
        held = [
            (one.inuse_space, one.inuse_objects) if one else (0, 0)
            for one in (new.get(site_id), old.get(site_id))
        ]
        shown = new.get(site_id) or old[site_id]
        sites.append(WeightedSite(shown, (*held[0], *held[1]), changes.get(site_id, "unchanged")))
    was = f"{_subject(comparison.old)}, {_when(comparison.old)}"
    return _data(comparison.new, sites, [], 4) | {
        "title": _subject(comparison.new),
        "facts": [*_facts(comparison.new), ["compared with", was]],
        "answer": difference_line(comparison),
        "state": str(comparison.difference.outcome),
        **gate_and_measurement(comparison.new),
        "why": f"{sum(1 for change in comparison.changes if change.space > 0)} sites grew",
        "notes": [bounded(note) for note in comparison.notes],
        "places": [],
        "isDiff": True,
    }


def _data(
    profile: Profile, sites: Sequence[WeightedSite], regions: Sequence[WeightedSite], n_weights: int
) -> dict[str, Any]:
    labels, names = _Labels(), process_names(profile)
    sites = sorted(sites, key=lambda one: -max(one.weights))
    stacks = [(labels.numbers(one.site.frames), one.weights) for one in sites[:STACKS_MAX]]
    rest = sites[STACKS_MAX:]  # whose names no tree shows
    left_out = LeftOut(len(rest), tuple(sum(one.weights[i] for one in rest) for i in range(n_weights)))
    inward = (WeightedStack(names[::-1], weights) for names, weights in stacks)
    inverted = (WeightedStack(names, weights) for names, weights in stacks)
    trees = {
        "inward": flat_tree(inward, n_weights, left_out=left_out),
        "inverted": flat_tree(inverted, n_weights, left_out=left_out),
    }
    used = sorted({label for tree in trees.values() for label in tree.label} - {FOLDED})
    ranked = sorted((*sites, *regions), key=lambda one: -max(one.weights))
    return {
        "unit": plural(profile.unit),
        "totals": [sum(one.weights[i] for one in sites) for i in range(n_weights)],
        "trees": {name: _columns(tree, used) for name, tree in trees.items()},
        "labels": [labels.rows[label] for label in used],
        "moduleNames": labels.modules,
        "sites": [_site_row(one, names) for one in ranked[:SITES_MAX]],
        "sitesLeftOut": max(0, len(ranked) - SITES_MAX),
        "modules": _modules(sites, n_weights),
        "packages": {
            bounded(module_name(place.module)): bounded(package_text(place.package))
            for place in profile.places
            if place.package is not None
        },
        "timeline": _timeline(profile),
        "peak": _peak(profile),
        "churn": [_past_row(site) for site in profile.churn],
        "processes": [_process_row(one, names) for one in profile.processes[:PROCESSES_MAX]],
        "processesLeftOut": max(0, len(profile.processes) - PROCESSES_MAX),
        "threads": [[one.pid, one.tid, one.space, one.objects] for one in profile.threads],
    }


class _Labels:
    """Frame names in the trees: each pair of function and module once."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []  # function, number of the module, 1 = of a library or interpreter
        self.modules: list[str] = []
        self._numbers: dict[tuple[str, str], int] = {}
        self._module_numbers: dict[str, int] = {}

    def numbers(self, frames: Sequence[Frame]) -> list[int]:
        """The first stack of a frame decides its role. The allocation function has none."""
        of_libraries = set[int]()
        if not all(_label_key(frame) in self._numbers for frame in frames):
            of_libraries = {id(frame) for frame, role in roles(frames) if role in _FOLDED_ROLES}
        return [self._number(frame, id(frame) in of_libraries) for frame in frames]

    def _number(self, frame: Frame, is_library: bool) -> int:
        key = _label_key(frame)
        if key not in self._numbers:
            module = bounded(module_name(frame.module))
            if module not in self._module_numbers:
                self._module_numbers[module] = len(self.modules)
                self.modules.append(module)
            self._numbers[key] = len(self.rows)
            self.rows.append([display_name(frame), self._module_numbers[module], int(is_library)])
        return self._numbers[key]


def _label_key(frame: Frame) -> tuple[str, str]:
    return frame.module, frame.function or display_name(frame)


def _columns(tree: FlatTree, used: Sequence[int]) -> dict[str, Any]:
    """Renumbers the labels by the rows in use."""
    row = {label: i for i, label in enumerate(used)} | {FOLDED: FOLDED}
    folded = {str(i): count for i, count in enumerate(tree.folded) if count}
    labels = [row[label] for label in tree.label]
    return {"parent": tree.parent, "label": labels, "weights": tree.weights, "folded": folded}


def _site_row(one: WeightedSite, names: Mapping[int, str]) -> dict[str, Any]:
    site = one.site
    frame = responsible_frame(site.frames)
    row = stack_row(site) | {
        "weights": one.weights,
        "source": source_line(frame) if frame and frame.line else "",
        "oldest": round(site.oldest_ns / 1e9, 1),
        "end": site.end,
    }
    optional = {
        "change": one.change,
        "stderr": site.stderr_space,
        "suppressed": bounded(site.suppressed_by),
        "leaks": leaks_text(site.leaks),
        "approximate": site.approximate,
        "growth": [growth_rate(site), site_growth(site)] if site.growth else None,
        "processes": [process_text(one.pid, names) for one in site.processes[:SHARES_MAX]],
        "ages": ages_text(site.ages).strip(" ()"),
    }
    return row | {name: value for name, value in optional.items() if value}


def stack_row(site: Stacked) -> dict[str, Any]:
    """Identity, kind, responsible function and its module, and the frames."""
    frame = responsible_frame(site.frames)
    return {
        "id": site.id,
        "kind": bounded(site.kind),
        "where": _where(site),
        "module": bounded(module_name(frame.module)) if frame and frame.module else "",
        "stack": [frame_text(one) for one in site.frames[:FRAMES_MAX]],
    }


def _process_row(one: ProcessSum, names: Mapping[int, str]) -> list[Any]:
    """Name as in the sites' shares, pid, bytes, blocks, bytes with whole stacks, its largest site."""
    return [process_text(one.pid, names), one.pid, one.space, one.objects, one.complete_space, one.top_site]


def _peak(profile: Profile) -> dict[str, Any]:
    peak = profile.peak
    if peak is None:
        return {"caption": "", "rows": []}
    rest = peak.space - sum(site.space for site in peak.sites)
    left = (
        f" {count_text(rest, profile.unit)} by stacks that are not named here, or were not captured."
        if rest > 0
        else ""
    )
    caption = f"{peak_line(peak, profile.totals.inuse_space, profile.unit)}.{left}"
    return {"caption": caption, "rows": [_past_row(site) for site in peak.sites]}


def _past_row(site: PastSite) -> dict[str, Any]:
    return stack_row(site) | {"space": site.space, "objects": site.objects, "end": site.end}


def _where(site: Stacked) -> str:
    frame = responsible_frame(site.frames) or next(iter(site.frames), None)
    return display_name(frame) if frame else site.id


def _modules(sites: Iterable[WeightedSite], n_weights: int) -> list[list[Any]]:
    """Name, weights of sites whose responsible function is in it, weights of sites that pass through it."""
    own: defaultdict[str, list[int]] = defaultdict(lambda: [0] * n_weights)
    through: defaultdict[str, list[int]] = defaultdict(lambda: [0] * n_weights)
    for one in sites:
        frame = responsible_frame(one.site.frames)
        _add(own[_module(frame)], one.weights)
        paths = {frame.module for frame in one.site.frames} - {""}
        for name in {module_name(path) for path in paths} or {_module(frame)}:
            _add(through[name], one.weights)
    ranked = sorted(through, key=lambda name: (-max(own[name]), -max(through[name]), name))
    return [[bounded(name), own[name], through[name]] for name in ranked[:MODULES_MAX]]


def _module(frame: Frame | None) -> str:
    return module_name(frame.module) if frame and frame.module else "(no module)"


def _timeline(profile: Profile) -> dict[str, Any]:
    """Seconds, sums, and the columns of the sites that were largest at any moment; the page adds the rest."""
    peaks: dict[str, int] = {}
    for one in profile.timeline:
        for site in one.sites:
            peaks[site.id] = max(peaks.get(site.id, 0), site.space)
    shown = sorted(peaks, key=lambda site_id: (-peaks[site_id], site_id))[:TIMELINE_SITES_MAX]
    names = {site.id: _where(site) for site in reversed(profile.sites) if site.id in peaks}
    held = [{site.id: (site.space, site.objects) for site in one.sites} for one in profile.timeline]
    return {
        "seconds": [round(one.elapsed_ns / 1e9, 3) for one in profile.timeline],
        "sums": [[one.space, one.objects] for one in profile.timeline],
        "names": [names.get(site_id, f"gone since: {site_id}") for site_id in shown],
        "held": [[at.get(site_id, (0, 0)) for at in held] for site_id in shown],
    }


def _add(sums: list[int], weights: Sequence[int]) -> None:
    for i, weight in enumerate(weights):
        sums[i] += weight


def _subject(profile: Profile) -> str:
    subject = bounded(profile.target.package or profile.target.command)
    is_whole = profile.processes and not profile.target.pid
    return subject or ("every process" if is_whole else f"pid {profile.target.pid}")


def _when(profile: Profile) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(profile.wall_clock_s)) + " UTC"


def _facts(profile: Profile) -> list[list[str]]:
    target, totals, unwinding = profile.target, profile.totals, profile.unwinding
    sampled = f"one sample per {target.sample_bytes:,} bytes" if target.sample_bytes else "every allocation"
    facts = [
        ["process", f"pid {target.pid}, {target.arch}"],
        ["measured", f"{profile.duration_ns / 1e9:.1f} s until {_when(profile)}"],
        ["tracer", f"{target.tracer}, {sampled}"],
        ["stacks", f"{unwinding.complete:,} of {unwinding.stacks:,} complete"],
    ]
    if answer := next(growth_lines(profile), ""):
        facts.append(["growth", answer])
    facts += [[f"memory of pid {one.pid}", memory_line(one)] for one in profile.memory[:MEMORIES_MAX]]
    if profile.leaks:
        facts.append(["reachability", leaks_text(profile.leaks)])
    if target.serial:
        facts.insert(1, ["device", bounded(target.serial)])
    if totals.alloc_space is not None and totals.alloc_objects is not None:
        facts.append(["allocated in all", amount(totals.alloc_space, totals.alloc_objects, profile.unit)])
    if totals.unattributed_objects:
        facts.append(
            ["without a stack", amount(totals.unattributed_space, totals.unattributed_objects, profile.unit)]
        )
    return facts


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
