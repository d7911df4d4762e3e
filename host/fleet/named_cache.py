"""The BuildCache of `--cache URL`: a shared folder, or a local folder in front of a shared store."""

import hashlib
from pathlib import Path

import fsspec

from memleak_android.host.errors import UsageError
from memleak_android.host.fleet.sources import is_object_store, protocols, reason_of
from memleak_android.host.symbols.build_cache import BuildCache, StoredOrigin
from memleak_android.host.symbols.symbolizer import default_cache_dir
from memleak_android.unwind.file_writing import appearing

# bford.info/cachedir: backups skip such folders. Writing it proves that the folder is writable.
_TAG = b"Signature: 8a477f597d28d172789f06886806bc55\n# Made by memleak-android: compiled unwind tables and symbols.\n"


def open_cache(url: str) -> BuildCache:
    """Opens a cache. Raises what fsspec raises.

    url: "" for the user's own.
    """
    if not url:
        return BuildCache(default_cache_dir())
    files, root = fsspec.core.url_to_fs(url)
    if "file" in protocols(files):
        return BuildCache(Path(root), None, Path(root) / "debuginfo", Path(root) / "device-files")
    name = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    folder = default_cache_dir() / "shared" / name
    origin = StoredOrigin(files, root, is_object_store(files))
    return BuildCache(folder, origin, folder / "debuginfo", folder / "device-files")


def check_cache(url: str) -> None:
    """Raises UsageError if the cache is not writable."""
    try:
        files, root = fsspec.core.url_to_fs(url)
        if "file" in protocols(files):
            with appearing(Path(root) / "CACHEDIR.TAG") as tag:
                tag.write(_TAG)
            return
        if not is_object_store(files):
            files.makedirs(root, exist_ok=True)
        files.pipe_file(f"{root}/CACHEDIR.TAG", _TAG)
    except Exception as error:  # noqa: BLE001 - each store raises what its library does
        raise UsageError(
            f"could not open a cache at {url}: {reason_of(error)}", "name another one with --cache"
        ) from None
