"""The dataset's rows → one table of bytes by site and recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memleak_android.host.fleet.sources import shown_source
from memleak_android.host.profile.fleet_profile import RecordingRow, RecordingState

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
UNVERSIONED = ""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes and blocks: entry i belongs to recording[i] and site[i], sorted by site, then by recording.

    recording, site: indices into recordings and sites.
    first_row: for each site, the dataset's row with its frames.
    """

    recordings: tuple[RecordingRow, ...]
    sites: tuple[str, ...]
    kinds: tuple[str, ...]
    ends: tuple[str, ...]
    first_row: I64
    recording: I64
    site: I64
    space: I64
    objects: I64

    @property
    def n_recordings(self) -> int:
        return len(self.recordings)

    @property
    def n_sites(self) -> int:
        return len(self.sites)

    def group(self, of_recording: I64) -> Grouped:
        """of_recording: the group of each recording; -1 if none."""
        return Grouped(self, of_recording)


@dataclass(frozen=True)
class Grouped:
    """Sums by site and group of recordings."""

    held: Held
    of_recording: I64

    @cached_property
    def sizes(self) -> I64:
        """Recordings in each group."""
        return np.bincount(self.of_recording[self.of_recording >= 0], minlength=self._n).astype(np.int64)

    @cached_property
    def counts(self) -> I64:
        """Recordings that show a site: a row per site, a column per group."""
        return self._sum(np.ones(len(self.held.site))).astype(np.int64)

    @cached_property
    def space(self) -> F64:
        return self._sum(self.held.space.astype(np.float64))

    @property
    def _n(self) -> int:
        return int(self.of_recording.max(initial=-1)) + 1

    def _sum(self, weights: F64) -> F64:
        groups = self.of_recording[self.held.recording]
        counted = groups >= 0
        cells = self.held.site[counted] * self._n + groups[counted]
        sums = np.bincount(cells, weights[counted], self.held.n_sites * self._n)
        return sums.astype(np.float64).reshape(self.held.n_sites, self._n)


def read_recordings(table: pa.Table) -> list[RecordingRow]:
    """Rows in the order of the table. Equal bytes make the later row a duplicate."""
    seen: dict[str, str] = {}
    rows = []
    for row in table.to_pylist():
        state, reason = RecordingState(row["state"]), row["reason"]
        if state is not RecordingState.BROKEN:
            first = seen.setdefault(row["recording"], row["source"])
            if first != row["source"]:
                state, reason = RecordingState.DUPLICATE, f"the same as {shown_source(first)}"
        rows.append(_row(row, state, reason))
    return rows


def _row(row: dict[str, Any], state: RecordingState, reason: str) -> RecordingRow:
    return RecordingRow(
        source=shown_source(str(row["source"])),
        digest=str(row["recording"]),
        state=state,
        reason=reason,
        taken_at_s=row["taken_at"].timestamp() if row["taken_at"] is not None else 0.0,
        lost=tuple(row["lost"] or ()),
        answer=row["answer"] or "",
        **{name: row[name] for name in _PLAIN},
    )


_PLAIN = (
    *("bytes", "duration_s", "package", "version", "version_code", "model", "api_level", "abi", "serial"),
    *("inuse_space", "unattributed_space", "unattributed_objects", "stacks", "complete"),
)


def merge(rows: Sequence[RecordingRow], sites: pa.Table) -> Held:
    """Merges the sites of the recordings that count.

    sites: of all recordings in `rows`.
    """
    counted = [row for row in rows if row.is_counted]
    number = {row.digest: i for i, row in enumerate(counted)}
    digests = sites["recording"].combine_chunks().dictionary_encode()
    of_digest = np.array(
        [number.get(digest, -1) for digest in digests.dictionary.to_pylist()] or [-1], np.int64
    )
    recording = of_digest[digests.indices.to_numpy()] if len(sites) else np.zeros(0, np.int64)
    names = sites["site"].combine_chunks().dictionary_encode()
    ids = np.array(names.dictionary.to_pylist(), dtype=object)
    site = names.indices.to_numpy().astype(np.int64)
    kept = recording >= 0
    # A duplicate has its rows twice: keep the first of each site and recording.
    _, first = np.unique(np.where(kept, site * max(len(counted), 1) + recording, -1), return_index=True)
    first = first[kept[first]]
    order = first[np.lexsort((recording[first], site[first]))]
    shown, number_of = np.unique(site[order], return_inverse=True)
    first_row = np.full(len(shown), -1, np.int64)
    first_row[number_of[::-1]] = order[::-1]
    kinds, ends = (pc.take(sites[name], pa.array(first_row)).to_pylist() for name in ("kind", "end"))
    return Held(
        recordings=tuple(counted),
        sites=tuple(ids[shown]),
        kinds=tuple(kinds),
        ends=tuple(ends),
        first_row=first_row,
        recording=recording[order],
        site=number_of.astype(np.int64),
        space=sites["inuse_space"].to_numpy()[order],
        objects=sites["inuse_objects"].to_numpy()[order],
    )


def version_key(row: RecordingRow) -> tuple[int, tuple[tuple[int, int, str], ...], str]:
    """Sort key of a version: Android's code, then its numbers, so that 1.9 precedes 1.10."""
    parts = tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part)
        for part in re.findall(r"[0-9]{1,18}|[^0-9.]+", row.version)
    )
    return row.version_code, parts, row.version


def versions(held: Held) -> tuple[list[str], I64]:
    """Versions, oldest first, and the index of each recording's version; -1 without one."""
    oldest: dict[str, RecordingRow] = {}
    for row in held.recordings:
        if row.version != UNVERSIONED:
            known = oldest.setdefault(row.version, row)
            oldest[row.version] = min(known, row, key=version_key)
    names = sorted(oldest, key=lambda name: version_key(oldest[name]))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number.get(row.version, -1) for row in held.recordings], np.int64)


def percentile(held: Held, share: float) -> I64:
    """Nearest-rank percentile of bytes per recording for each site; recordings without it hold 0."""
    order = np.lexsort((held.space, held.site))
    space, counts = held.space[order], np.bincount(held.site, minlength=held.n_sites)
    begins = np.cumsum(counts) - counts
    rank = max(int(np.ceil(share * held.n_recordings)) - 1, 0)  # zero-based, among all recordings
    index = rank - (held.n_recordings - counts)
    return np.where(
        index < 0, 0, space[np.clip(begins + index, 0, max(len(space) - 1, 0))] if len(space) else 0
    )
