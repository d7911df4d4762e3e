"""One recording → one Part of the dataset, in a worker that may run elsewhere and may be killed."""

import functools
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fsspec

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.errors import MemleakError
from memleak_android.host.fleet.named_cache import open_cache
from memleak_android.host.fleet.rows import broken_row, recording_row, site_rows
from memleak_android.host.fleet.schema import FORMAT, SITES, to_parquet
from memleak_android.host.fleet.sources import StoredRecording, local_path, reason_of
from memleak_android.host.profile.fleet_profile import CachedFiles
from memleak_android.host.recording.file import check_file_header
from memleak_android.host.recording.read import read_profile
from memleak_android.host.symbols.debug_files import SymbolIndex
from memleak_android.unwind.file_reading import opened
from memleak_android.unwind.file_writing import create, temporary_folder

RECORDING_BYTES_MAX = 64 << 30
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """Inputs of a part beside its recording.

    symbols: folders, at the same path on every worker.
    cache: URL, "" for the user's own; not part of the key.
    run: unique per run, during which symbols do not change; not part of the key.
    """

    symbols: Sequence[str] = ()
    warmup_ns: int = 0
    cooldown_ns: int = 0
    cache: str = ""
    run: str = ""

    def key(self, recording: StoredRecording) -> str:
        """Name of the part; it changes with content, settings and columns."""
        span = f"{self.warmup_ns} {self.cooldown_ns}"
        inputs = "\n".join((str(FORMAT), recording.url, recording.token, span, *self.symbols))
        return hashlib.blake2b(inputs.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """One recording's rows.

    recordings, sites: whole Parquet files.
    is_final: False if another try may succeed (the store failed).
    cached, cache_failures: uses of the cache; not in the dataset.
    """

    key: str
    recordings: bytes
    sites: bytes
    is_final: bool = True
    cached: tuple[CachedFiles, ...] = ()
    cache_failures: tuple[str, ...] = ()


def process(recording: StoredRecording, settings: Settings) -> Part:
    """Processes one recording. Never raises: a failure is the reason in its row."""
    key = settings.key(recording)
    try:
        with temporary_folder("memleak-fleet-") as folder:
            path, digest, size = _fetch(recording, Path(folder))
            return _process(recording, settings, key, path, digest, size)
    except MemleakError as error:
        return _broken(key, recording, recording.size, "", error.message, is_final=True)
    except Exception as error:  # noqa: BLE001 - each store raises what its library does
        return _broken(key, recording, recording.size, "", reason_of(error), is_final=False)


def _process(
    recording: StoredRecording, settings: Settings, key: str, path: Path, digest: str, size: int
) -> Part:
    try:
        view = View(warmup_ns=settings.warmup_ns, cooldown_ns=settings.cooldown_ns)
        cache, folders = open_cache(settings.cache), [Path(folder) for folder in settings.symbols]
        cache.symbols = _symbol_index(tuple(settings.symbols), settings.run)
        profile = read_profile(path, view, folders, whole=True, cache=cache)
    except MemleakError as error:
        reason = error.message.replace(str(path), "the recording")
        return _broken(key, recording, size, digest, reason, is_final=True)
    except Exception as error:  # noqa: BLE001 - a bug must cost one recording, not the run
        return _broken(key, recording, size, digest, f"internal error: {reason_of(error)}", is_final=True)
    row = recording_row(profile, digest, recording.url, size)
    uses = cache.uses if settings.cache else {}
    cached = tuple(CachedFiles(kind, use.built, use.reused, use.fetched) for kind, use in uses.items())
    tables = to_parquet(row), to_parquet(site_rows(profile, digest))
    return Part(key, *tables, cached=cached, cache_failures=tuple(cache.failures))


@functools.lru_cache(maxsize=1)
def _symbol_index(folders: tuple[str, ...], run: str) -> SymbolIndex:
    """One index per worker: a platform build has 50,000 files."""
    return SymbolIndex(list(map(Path, folders)))


def _broken(
    key: str, recording: StoredRecording, size: int, digest: str, reason: str, *, is_final: bool
) -> Part:
    row = broken_row(recording.url, size, digest, reason)
    return Part(key, to_parquet(row), to_parquet(SITES.empty_table()), is_final)


def dead_worker(recording: StoredRecording, settings: Settings, tries: int) -> Part:
    """The part of a recording whose worker died in every try."""
    reason = f"its worker died {tries} times: out of memory?"
    return _broken(settings.key(recording), recording, recording.size, "", reason, is_final=False)


def _fetch(recording: StoredRecording, folder: Path) -> tuple[Path, str, int]:
    """Local path, digest and size of a recording, copied if it is elsewhere."""
    local = local_path(recording.url)
    copy = folder / "recording.memleak"
    digest, size = hashlib.blake2b(digest_size=16), 0
    with (
        fsspec.open(recording.url, "rb") if local is None else opened(local) as source,
        open(create(copy), "wb") if local is None else io.BytesIO() as into,
    ):
        if local is not None and not os.fstat(source.fileno()).st_size:
            raise OSError("the recording is empty")  # or one of /proc and /sys, which may have no end
        while piece := source.read(_PIECE):
            if not size:
                check_file_header(Path("the recording"), piece)
            size += len(piece)
            if size > RECORDING_BYTES_MAX:
                raise OSError(f"it has more than {RECORDING_BYTES_MAX:,} bytes")
            digest.update(piece)
            if local is None:
                into.write(piece)
    return copy if local is None else Path(local), digest.hexdigest(), size
