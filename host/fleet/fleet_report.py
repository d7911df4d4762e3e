"""Dataset + recordings → FleetProfile, with the changes between versions and kinds of devices, and their significance."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa

from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.merging import (
    F64,
    I64,
    Grouped,
    Held,
    merge,
    percentile,
    read_recordings,
    versions,
)
from memleak_android.host.fleet.rows import broken_row
from memleak_android.host.fleet.run import Worked
from memleak_android.host.fleet.schema import RECORDINGS, SITES, from_parquet
from memleak_android.host.fleet.sources import RefusedSource
from memleak_android.host.profile.changes import change_of
from memleak_android.host.profile.fleet_profile import (
    FleetProfile,
    OnlyOn,
    RecordingRow,
    RecordingState,
    SitePrevalence,
    VersionChange,
    VersionSum,
)
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Measurement, Profile, Target, Totals, Unwinding

_SITE_COLUMNS = ["recording", "site", "kind", "inuse_space", "inuse_objects", "end"]
_DURATIONS_DIFFER = 1.5  # ratio of the longest to the shortest median among versions
_AHEAD_S = 86_400.0  # more than a time zone taken for UTC
_FIRST_S = datetime(2024, 1, 1, tzinfo=UTC).timestamp()  # the format is younger


def make_fleet_profile(
    dataset: Dataset, worked: Worked, refused: Sequence[RefusedSource], now_s: float, max_lost: float
) -> FleetProfile:
    """max_lost: accepted share of broken and incomplete recordings. Raises UsageError."""
    keys = worked.keys
    read = [
        RECORDINGS.empty_table(),
        *dataset.read("recordings", keys),
        *(from_parquet(part.recordings) for part in worked.passing),
        *(broken_row(each.source, 0, "", each.reason) for each in refused),
    ]
    rows = [judge_clock(row, now_s) for row in read_recordings(pa.concat_tables(read))]
    parts = dataset.read("sites", keys, _SITE_COLUMNS)
    held = merge(rows, pa.concat_tables([SITES.empty_table().select(_SITE_COLUMNS), *parts]).combine_chunks())
    frames = _frames(dataset, keys, [len(part) for part in parts], held)
    sums = version_sums(held)
    lost = sum(row.state in (RecordingState.BROKEN, RecordingState.INCOMPLETE) for row in rows)
    sites = _prevalences(held, frames)
    return FleetProfile(
        recordings=tuple(rows),
        versions=tuple(sums),
        sites=sites,
        changes=tuple(version_changes(held, frames)),
        only_on=tuple(only_on(held, frames)),
        mean=_mean_profile(held, sites, now_s, is_incomplete=lost > max_lost * max(len(rows), 1)),
        notes=(
            *notes_of_clocks(rows),
            *_notes_of_durations([version.median_duration_s for version in sums]),
            *(
                f"could not use the cache, so each worker made its own: {reason}"
                for reason in worked.cache_failures
            ),
        ),
        cache=tuple(worked.cached.values()),
    )


def _frames(
    dataset: Dataset, keys: Sequence[str], lengths: Sequence[int], held: Held
) -> list[tuple[Frame, ...]]:
    """Frames of each site, read from the first part that has it: most recordings repeat the first one's sites."""
    ends = np.cumsum(lengths)
    part_of = np.searchsorted(ends, held.first_row, side="right")
    found: list[tuple[Frame, ...]] = [()] * held.n_sites
    for part in np.unique(part_of).tolist():
        sites = np.flatnonzero(part_of == part)
        (table,) = dataset.read("sites", [keys[part]], ("frames",))
        rows = table["frames"].take(pa.array(held.first_row[sites] - (ends[part] - lengths[part])))
        for site, frames in zip(sites.tolist(), rows.to_pylist(), strict=True):
            found[site] = tuple(Frame(address=0, method="", **row) for row in frames)
    return found


def _prevalences(held: Held, frames: Sequence[tuple[Frame, ...]]) -> tuple[SitePrevalence, ...]:
    n = max(held.n_recordings, 1)
    space = np.bincount(held.site, held.space, held.n_sites)
    objects = np.bincount(held.site, held.objects, held.n_sites)
    counts = np.bincount(held.site, minlength=held.n_sites)
    ranks = [percentile(held, share) for share in (0.5, 0.9, 0.99)]
    names, of_recording = versions(held)
    in_versions = held.group(of_recording).counts if names else np.zeros((held.n_sites, 0), np.int64)
    order = np.lexsort((np.array(held.sites, dtype="U16"), -space)).tolist()
    return tuple(
        SitePrevalence(
            id=held.sites[i],
            kind=held.kinds[i],
            end=held.ends[i],
            frames=frames[i],
            recordings=int(counts[i]),
            share=int(counts[i]) / n,
            mean_space=float(space[i]) / n,
            mean_objects=float(objects[i]) / n,
            p50=int(ranks[0][i]),
            p90=int(ranks[1][i]),
            p99=int(ranks[2][i]),
            versions=tuple(names[v] for v in np.flatnonzero(in_versions[i]).tolist()),
        )
        for i in order
    )


def _mean_profile(
    held: Held, sites: Sequence[SitePrevalence], now_s: float, *, is_incomplete: bool
) -> Profile:
    """The mean recording, for formats, baselines and limits. No site and no loss is rounded to 0.

    Its time is that of the last recording with a plausible clock.
    """
    n = max(held.n_recordings, 1)
    space, objects = (
        -(-sum(getattr(row, name) for row in held.recordings) // n)
        for name in ("unattributed_space", "unattributed_objects")
    )
    lost: Counter[str] = Counter()
    for row in held.recordings:
        lost.update(dict(row.lost))
    call_sites = tuple(_mean_site(site) for site in sites)
    stacks, complete = (
        sum(row.stacks for row in held.recordings),
        sum(row.complete for row in held.recordings),
    )
    return Profile(
        target=Target("", 0, f"{held.n_recordings} recordings, on average", "fleet", "", 0),
        duration_ns=round(float(np.mean([row.duration_s for row in held.recordings] or [0.0])) * 1e9),
        measurement=Measurement.INCOMPLETE if is_incomplete else Measurement.COMPLETE,
        totals=Totals(
            inuse_space=sum(site.inuse_space for site in call_sites) + space,
            inuse_objects=sum(site.inuse_objects for site in call_sites) + objects,
            alloc_space=None,
            alloc_objects=None,
            unattributed_space=space,
            unattributed_objects=objects,
            lost={cause: -(-count // n) for cause, count in sorted(lost.items())},
            untracked_frees=0,
        ),
        unwinding=Unwinding(stacks // n, complete // n, (stacks - complete) // n, {}),
        sites=call_sites,
        modules=(),
        wall_clock_s=max((row.taken_at_s for row in held.recordings if not row.clock), default=now_s),
        notes=(f"bytes and blocks are means of {held.n_recordings} recordings",),
    )


def _mean_site(site: SitePrevalence) -> CallSite:
    return CallSite(
        id=site.id,
        inuse_space=max(round(site.mean_space), 1),
        inuse_objects=max(round(site.mean_objects), 1),
        alloc_space=None,
        alloc_objects=None,
        oldest_ns=0,
        kind=site.kind,
        end=site.end,
        frames=site.frames,
    )


def _notes_of_durations(medians: Sequence[float]) -> list[str]:
    if not medians or max(medians) < 1 or max(medians) <= _DURATIONS_DIFFER * max(min(medians), 1e-9):
        return []
    return [
        f"versions were measured for different times (medians of {min(medians):.1f} to {max(medians):.1f} s): a steady leak differs with the time"
    ]


def judge_clock(row: RecordingRow, now_s: float) -> RecordingRow:
    """Adds a note to a row with an impossible time, which still counts: clocks may be wrong, so nothing is ordered by them.

    now_s: by this machine's clock.
    """
    if not row.is_counted or _FIRST_S <= row.taken_at_s <= now_s + _AHEAD_S:
        return row
    shown = datetime.fromtimestamp(row.taken_at_s, UTC)
    side = "is ahead of this machine's" if row.taken_at_s > now_s else "was never set"
    return replace(row, clock=f"its clock said {shown:%Y-%m-%d}, and {side}")


def notes_of_clocks(rows: Sequence[RecordingRow]) -> list[str]:
    wrong = sum(bool(row.clock) for row in rows)
    if not wrong:
        return []
    return [
        f"clocks that disagree: those of {wrong:,} recording{'s' * (wrong > 1)}; nothing is ordered by time"
    ]


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
