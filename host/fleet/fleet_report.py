"""Dataset + recordings → FleetProfile."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from memleak_android.host.fleet import answers
from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.merging import Held, merge, percentile, read_recordings, versions
from memleak_android.host.fleet.rows import broken_row
from memleak_android.host.fleet.run import Worked
from memleak_android.host.fleet.schema import RECORDINGS, SITES, from_parquet
from memleak_android.host.fleet.sources import RefusedSource
from memleak_android.host.profile.fleet_profile import (
    FleetProfile,
    RecordingRow,
    RecordingState,
    SitePrevalence,
)
from memleak_android.host.profile.profile import (
    CallSite,
    Frame,
    Measurement,
    Profile,
    Target,
    Totals,
    Unwinding,
)

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
    sums = answers.version_sums(held)
    lost = sum(row.state in (RecordingState.BROKEN, RecordingState.INCOMPLETE) for row in rows)
    sites = _prevalences(held, frames)
    return FleetProfile(
        recordings=tuple(rows),
        versions=tuple(sums),
        sites=sites,
        changes=tuple(answers.version_changes(held, frames)),
        only_on=tuple(answers.only_on(held, frames)),
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
