"""Changes between versions and sites of one kind of device, with their significance."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from memleak_android.host.fleet.merging import F64, I64, Grouped, Held, versions
from memleak_android.host.profile.changes import change_of
from memleak_android.host.profile.fleet_profile import OnlyOn, RecordingRow, VersionChange, VersionSum
from memleak_android.host.profile.profile import Frame

Q_MAX = 0.05  # false discovery rate of the shown changes
P_MAX = 0.01  # of a site that only one kind of device shows, by chance
_SITES_AT_ONCE = 512

Frames = Sequence[tuple[Frame, ...]]  # of each site

DIMENSIONS: dict[str, Callable[[RecordingRow], str]] = {
    "abi": lambda row: row.abi,
    "api_level": lambda row: str(row.api_level) if row.api_level else "",
}


def version_sums(held: Held) -> list[VersionSum]:
    names, of_recording = versions(held)
    found = []
    for number, name in enumerate(names):
        rows = [row for row, group in zip(held.recordings, of_recording, strict=True) if group == number]
        found.append(
            VersionSum(
                name,
                len(rows),
                float(np.mean([row.inuse_space for row in rows])),
                float(np.median([row.duration_s for row in rows])),
            )
        )
    return found


def version_changes(held: Held, frames: Frames) -> list[VersionChange]:
    """Changes between neighbouring versions with q <= Q_MAX, the largest first."""
    names, of_recording = versions(held)
    grouped, found = held.group(of_recording), list[VersionChange]()
    for old, new in pairwise(range(len(names))):
        found += _between(grouped, old, new, names, frames)
    return sorted(found, key=lambda change: (-abs(change.space), change.id))


def _between(
    grouped: Grouped, old: int, new: int, names: Sequence[str], frames: Frames
) -> Iterator[VersionChange]:
    held, counts, sizes = grouped.held, grouped.counts, grouped.sizes
    shown = np.flatnonzero(counts[:, old] + counts[:, new])
    p = _mann_whitney(held, shown, grouped.of_recording, old, new)
    tested = np.isfinite(p)  # NaN where all recordings hold the same
    if not tested.any():
        return
    from scipy.stats import false_discovery_control  # a second: where there is something to test

    q = np.ones(len(shown))
    q[tested] = false_discovery_control(p[tested])
    means = grouped.space[:, [old, new]] / sizes[[old, new]]
    for i in np.flatnonzero(tested & (q <= Q_MAX)).tolist():
        site = int(shown[i])
        was, now = (float(mean) for mean in means[site])
        if was == now:
            continue
        yield VersionChange(
            id=held.sites[site],
            kind=held.kinds[site],
            frames=frames[site],
            change=change_of(int(counts[site, old]), int(counts[site, new]), now - was),
            old_version=names[old],
            new_version=names[new],
            old=was,
            new=now,
            old_recordings=int(counts[site, old]),
            new_recordings=int(counts[site, new]),
            old_of=int(sizes[old]),
            new_of=int(sizes[new]),
            q=float(q[i]),
        )


def _mann_whitney(held: Held, shown: I64, of_recording: I64, old: int, new: int) -> F64:
    """p of each shown site; NaN if all recordings hold the same. Recordings without the site hold 0."""
    olds, news = (np.flatnonzero(of_recording == group) for group in (old, new))
    column = np.full(held.n_recordings, -1, np.int64)
    column[np.concatenate((olds, news))] = np.arange(len(olds) + len(news))
    row_of = np.full(held.n_sites, -1, np.int64)
    p = np.full(len(shown), np.nan)
    for begin in range(0, len(shown), _SITES_AT_ONCE):
        some = shown[begin : begin + _SITES_AT_ONCE]
        row_of[some] = np.arange(len(some))
        entries = np.flatnonzero((row_of[held.site] >= 0) & (column[held.recording] >= 0))
        space = np.zeros((len(some), len(olds) + len(news)))
        space[row_of[held.site[entries]], column[held.recording[entries]]] = held.space[entries]
        row_of[some] = -1
        varies = space.min(axis=1) != space.max(axis=1)
        if varies.any():
            from scipy.stats import mannwhitneyu

            tested = mannwhitneyu(space[varies, : len(olds)], space[varies, len(olds) :], axis=1)
            p[begin : begin + len(some)][varies] = tested.pvalue
    return p


def only_on(held: Held, frames: Frames) -> list[OnlyOn]:
    """Sites that a single value of a dimension shows although others were measured. p <= P_MAX."""
    found: list[OnlyOn] = []
    for dimension, value_of in DIMENSIONS.items():
        values = [value_of(row) for row in held.recordings]
        names = sorted({value for value in values if value})
        number = {name: i for i, name in enumerate(names)}
        of_recording = np.array([number.get(value, -1) for value in values], np.int64)
        found += _alone(held.group(of_recording), dimension, names, frames) if len(names) > 1 else []
    return sorted(found, key=lambda site: (-site.mean_space * site.of, site.dimension, site.id))


def _alone(grouped: Grouped, dimension: str, names: Sequence[str], frames: Frames) -> Iterator[OnlyOn]:
    held, counts, sizes = grouped.held, grouped.counts, grouped.sizes
    all_of_site = counts.sum(axis=1)
    group = counts.argmax(axis=1)
    total = int(sizes.sum())
    for site in np.flatnonzero((counts.max(axis=1) == all_of_site) & (all_of_site > 0)).tolist():
        of = int(sizes[group[site]])
        chance = _chance_of_one_group(int(all_of_site[site]), of, total)
        if chance <= P_MAX:
            yield OnlyOn(
                id=held.sites[site],
                kind=held.kinds[site],
                frames=frames[site],
                dimension=dimension,
                value=names[int(group[site])],
                recordings=int(all_of_site[site]),
                of=of,
                mean_space=float(grouped.space[site].sum()) / of,
                p=chance,
            )


def _chance_of_one_group(n: int, of: int, total: int) -> float:
    """Chance that n recordings drawn from all are among the `of` ones of a group: C(of, n) / C(total, n), hypergeometric."""
    of_group = math.lgamma(of + 1) - math.lgamma(of - n + 1)
    of_all = math.lgamma(total + 1) - math.lgamma(total - n + 1)
    return math.exp(of_group - of_all)
