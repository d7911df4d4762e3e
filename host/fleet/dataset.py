"""The dataset: recordings/KEY.parquet and sites/KEY.parquet in one folder, on any store that fsspec knows.

A part exists once its row in recordings/ does: it is written last, and each file in one step.
"""

import posixpath
from collections.abc import Sequence
from pathlib import Path

import fsspec
import pyarrow as pa

from memleak_android.host.errors import UsageError
from memleak_android.host.fleet.processing import Part
from memleak_android.host.fleet.schema import RECORDINGS, SITES, from_parquet
from memleak_android.host.fleet.sources import is_object_store, protocols, reason_of
from memleak_android.unwind.file_writing import make_folder, replacing

_FOLDERS = {"recordings": RECORDINGS, "sites": SITES}


class Dataset:
    """Parts by key.

    url: the folder, created if missing. Raises UsageError if that fails.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
            for name in () if is_object_store(self._files) else _FOLDERS:
                path = self._path(name)
                if self._is_local:
                    make_folder(Path(path))
                else:
                    self._files.makedirs(path, exist_ok=True)
            self._files.invalidate_cache()
            found = self._listed()
        except Exception as error:  # noqa: BLE001 - each store raises what its library does
            raise UsageError(
                f"could not open a dataset at {url}: {reason_of(error)}", "name another one with --dataset"
            ) from None
        self._keys = {posixpath.basename(name).removesuffix(".parquet") for name in found}

    def _listed(self) -> list[str]:
        try:
            return list(self._files.ls(self._path("recordings"), detail=False))
        except FileNotFoundError:  # an object store has no empty folders
            return []

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, part: Part) -> None:
        """Writes a part; writing it twice does no harm. Raises UsageError if the store fails."""
        try:
            self._write(self._path("sites", part.key), part.sites)
            self._write(self._path("recordings", part.key), part.recordings)
        except Exception as error:  # noqa: BLE001 - as above
            raise UsageError(
                f"could not write to {self.url}: {reason_of(error)}",
                "make room, or name another dataset with --dataset",
            ) from None
        self._keys.add(part.key)

    def read(self, name: str, keys: Sequence[str], columns: Sequence[str] = ()) -> list[pa.Table]:
        """A table for each key.

        name: recordings or sites.
        columns: all if empty.
        """
        schema = _FOLDERS[name]
        if columns:
            schema = pa.schema([schema.field(column) for column in columns])
        return [self._read(self._path(name, key), schema) for key in keys]

    def _read(self, path: str, schema: pa.Schema) -> pa.Table:
        try:
            with self._files.open(path, "rb") as stream:
                return from_parquet(stream.read(), schema.names).cast(schema)
        except Exception as error:  # noqa: BLE001 - as above
            raise UsageError(
                f"{self.url} is damaged ({posixpath.basename(path)}: {reason_of(error)})",
                "remove it and run again",
            ) from None

    def _write(self, path: str, data: bytes) -> None:
        """In one step: an object store's objects appear whole."""
        with replacing(Path(path)) if self._is_local else self._files.open(path, "wb") as stream:
            stream.write(data)

    @property
    def _is_local(self) -> bool:
        return "file" in protocols(self._files)

    def _path(self, name: str, key: str = "") -> str:
        return posixpath.join(self._root, name, f"{key}.parquet" if key else "")
