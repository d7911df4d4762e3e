"""Lists the recordings of a SOURCE: a file, folder, glob, archive, or URL of fsspec (s3://, https://)."""

import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec

from memleak_android.host.console import one_line
from memleak_android.unwind.file_reading import opened

SUFFIXES = (".memleak",)
RECORDINGS_MAX = 1_000_000
_ARCHIVES = {
    ".zip": "zip",
    ".apk": "zip",
    ".tar": "tar",
    ".tar.gz": "tar",
    ".tgz": "tar",
    ".tar.bz2": "tar",
    ".tar.xz": "tar",
}
# Fields of a listing that change with the content. Access times and other fields do not.
_TOKEN_FIELDS = (
    *("size", "mtime", "ETag", "etag", "LastModified", "last_modified", "created", "ino", "CRC"),
    *("date_time", "chksum"),
)


@dataclass(frozen=True, slots=True)
class StoredRecording:
    """url: as fsspec opens it. token: changes with the content."""

    url: str
    size: int
    token: str


@dataclass(frozen=True, slots=True)
class RefusedSource:
    """A SOURCE that could not be listed."""

    source: str
    reason: str


def list_sources(sources: Sequence[str]) -> tuple[list[StoredRecording], list[RefusedSource]]:
    """Each recording once, by url, and the sources that could not be listed."""
    found: dict[str, StoredRecording] = {}
    refused = []
    for source in sources:
        try:
            listed = list(_list(source))
        except Exception as error:  # noqa: BLE001 - each store raises what its library does
            refused.append(RefusedSource(source, reason_of(error)))
            continue
        if not listed:
            refused.append(RefusedSource(source, f"no {' or '.join(SUFFIXES)} files there"))
        refused += [one for one in listed if isinstance(one, RefusedSource)]
        found.update((one.url, one) for one in listed if isinstance(one, StoredRecording))
    return [found[url] for url in sorted(found)][:RECORDINGS_MAX], refused


# Stores whose objects appear when they are written completely, and that need no folders.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"})


def protocols(files: Any) -> frozenset[str]:
    """Protocols of an fsspec filesystem."""
    named = files.protocol
    return frozenset((named,) if isinstance(named, str) else named)


def is_object_store(files: Any) -> bool:
    """Whether a new folder would be a bucket, which a mistyped name must not create."""
    return not _OBJECT_STORES.isdisjoint(protocols(files))


def reason_of(error: BaseException) -> str:
    """A store's error as one short line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return one_line(f"{type(error).__name__}: {text}".splitlines()[0])


def _list(source: str) -> Iterator[StoredRecording | RefusedSource]:
    archive = next((kind for suffix, kind in _ARCHIVES.items() if source.lower().endswith(suffix)), None)
    if archive and "::" not in source:
        yield from _in_archive(archive, source)
        return
    files, path = fsspec.core.url_to_fs(source)
    for name, about in _files(files, path):
        yield StoredRecording(files.unstrip_protocol(name), int(about.get("size") or 0), _token(about))


def _in_archive(kind: str, source: str) -> Iterator[StoredRecording | RefusedSource]:
    """Members of an archive; their token is the archive's."""
    if local := local_path(source):
        opened(local).close()  # fsspec would wait for a FIFO's writer
    outer, path = fsspec.core.url_to_fs(source)
    about = outer.info(path)
    url = outer.unstrip_protocol(path)
    inner = fsspec.filesystem(kind, fo=url)
    irregular = set(_irregular_members(inner.tar)) if kind == "tar" else ()
    for name, member in inner.find("", detail=True).items():
        if name in irregular:
            yield RefusedSource(f"{kind}://{name}::{url}", "not a regular file")
        elif name.endswith(SUFFIXES):
            size = int(member.get("size") or 0)
            yield StoredRecording(
                f"{kind}://{name}::{url}", size, _token(about | {"size": (about.get("size"), size)})
            )


def _irregular_members(archive: tarfile.TarFile) -> Iterator[str]:
    """Recordings that are FIFOs, devices, or links to none of the archive's files."""
    for member in archive:
        try:
            is_regular = not member.name.endswith(SUFFIXES) or archive.extractfile(member) is not None
        except (KeyError, RecursionError):
            is_regular = False
        if not (is_regular or member.isdir()):
            yield member.name


def _files(files: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if any(c in path for c in "*?["):
        found = files.glob(path, detail=True)
    elif files.isdir(path):
        found = {
            name: about for name, about in files.find(path, detail=True).items() if name.endswith(SUFFIXES)
        }
    else:
        found = {path: files.info(path)}
    for name, about in found.items():
        if about.get("type") != "directory":
            yield name, about


def _token(about: dict[str, Any]) -> str:
    fields = "\n".join(f"{name}={about[name]}" for name in _TOKEN_FIELDS if about.get(name) is not None)
    return hashlib.blake2b(fields.encode("utf-8", "replace"), digest_size=8).hexdigest()


def local_path(url: str) -> str | None:
    """The path of a local file, None for any other URL."""
    if "::" in url:
        return None
    scheme, _, rest = url.partition("://")
    if not rest:
        return os.path.abspath(url)
    return rest if scheme in ("file", "local") else None


def shown_source(url: str) -> str:
    """A source as reports show it: a local file by its path."""
    return one_line(local_path(url) or url)
