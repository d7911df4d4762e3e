"""Debug information by build-id from the servers in DEBUGINFOD_URLS; unused if that variable is not set.

The variables and the folder are those of debuginfod's client, so that files are shared with gdb and others:
debuginfod-find(1), debuginfod_find_debuginfo(3), debuginfod(8) "WEBAPI".
"""

import contextlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from memleak_android.host.cache_folder import cache_base
from memleak_android.unwind.cfi.cache_sharing import Sharing, Unshared
from memleak_android.unwind.elf_headers import BUILD_ID
from memleak_android.unwind.file_writing import appearing

MAX_BYTES = 512 << 20
MISS_S = 600.0  # debuginfod's default
SILENCE_S = 10.0  # of a connection
_PIECE = 1 << 20


@dataclass(slots=True)
class Debuginfod:
    """servers: those that did not fail yet. patience_s: for one file. notes: failures, one sentence each."""

    servers: list[str]
    cache: Path
    patience_s: float = 90.0
    notes: list[str] = field(default_factory=list)
    sharing: Sharing = field(default_factory=Unshared)
    _asked: dict[str, Path | None] = field(default_factory=dict)

    def find(self, build_id: str) -> Path | None:
        """The file with the debug information of a build-id, from the cache or a server."""
        if not self.servers or not BUILD_ID.fullmatch(build_id):
            return None
        if build_id not in self._asked:
            path = self.cache / build_id / "debuginfo"
            self._asked[build_id] = (
                None
                if _is_known_miss(path)
                else self.sharing.obtain(path, lambda: _kept(path), lambda: self._fetch(build_id, path))
            )
        return self._asked[build_id]

    def _fetch(self, build_id: str, path: Path) -> Path | None:
        for server in list(self.servers):
            try:
                if _download(f"{server}/buildid/{build_id}/debuginfo", path, self.patience_s):
                    return path
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.servers.remove(server)
                self.notes.append(f"{server} (DEBUGINFOD_URLS) is not asked any more: {error}")
        if self.servers and not self.notes:
            with contextlib.suppress(OSError), appearing(path):  # empty: a miss
                pass
        return None


def _kept(path: Path) -> Path | None:
    return path if path.is_file() and path.stat().st_size > 0 else None


def _is_known_miss(path: Path) -> bool:
    """Whether an empty cache file says that no server had it recently (debuginfod_find_debuginfo(3), cache_miss_s)."""
    try:
        about = path.stat()
    except OSError:
        return False
    return not about.st_size and time.time() - about.st_mtime < MISS_S


def debuginfod_of(environment: Mapping[str, str], default_cache: Path) -> Debuginfod:
    """Reads DEBUGINFOD_URLS (http and https), DEBUGINFOD_CACHE_PATH and DEBUGINFOD_TIMEOUT."""
    urls = environment.get("DEBUGINFOD_URLS", "").split()
    servers = [url.rstrip("/") for url in urls if url.startswith(("http://", "https://"))]
    folder = environment.get("DEBUGINFOD_CACHE_PATH", "")
    patience = environment.get("DEBUGINFOD_TIMEOUT", "")
    made = Debuginfod(servers, Path(folder) if folder else default_cache)
    if patience.isdecimal() and int(patience):
        made.patience_s = float(patience)
    return made


def default_cache() -> Path:
    """The folder of debuginfod's client."""
    return cache_base() / "debuginfod_client"


def _download(url: str, path: Path, patience_s: float) -> bool:
    """False: the server does not have it. The file appears complete or not at all. Raises OSError or HTTPException."""
    deadline = time.monotonic() + patience_s
    try:
        timeout = min(SILENCE_S, patience_s)
        with urllib.request.urlopen(url, timeout=timeout) as answer, appearing(path) as file:
            _copy(answer, file, deadline)
        return True
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.NOT_FOUND:
            return False
        raise


def _copy(answer: http.client.HTTPResponse, file: BinaryIO, deadline: float) -> None:
    size = 0
    while piece := answer.read1(_PIECE):
        size += len(piece)
        if size > MAX_BYTES:
            raise OSError(f"more than {MAX_BYTES:,} bytes")
        if time.monotonic() > deadline:
            raise OSError("too slow (DEBUGINFOD_TIMEOUT)")
        file.write(piece)
    if answer.length:
        raise OSError("the answer is cut")
