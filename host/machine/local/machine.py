"""This machine as a target: programs are our children, files are read directly."""

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from memleak_android.host.errors import DeviceError, TracerError
from memleak_android.host.machine import target
from memleak_android.host.machine.binaries import AGENT, find_binary, local_arch
from memleak_android.host.machine.capabilities import probe_agent
from memleak_android.host.machine.local.channel import LocalChannel
from memleak_android.host.machine.target import (
    OUTPUT_BYTES_MAX,
    RUN_TIMEOUT_S,
    Answer,
    AppUser,
)
from memleak_android.unwind.file_reading import opened
from memleak_android.unwind.file_writing import appearing


class FilesInPlace:
    """Implements Deployment for files that are already on the target and stay."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.paths: Mapping[str, str] = {name: str(path) for name, path in files.items()}

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class OwnStreams:
    """Implements Relay for a program that inherited our streams."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(list(argv))

    def drain(self) -> None:
        self._process.wait()

    def close(self) -> None:
        self._process.wait()


class LocalMachine:
    """Implements Target. as_root and run_as have no effect: programs run as our user."""

    serial = ""
    name = "this machine"
    is_local = True

    @property
    def arch(self) -> str:
        return local_arch()

    @property
    def has_root(self) -> bool:
        return os.geteuid() == 0

    def run(
        self,
        argv: Sequence[str],
        *,
        as_root: bool = False,
        run_as: AppUser | None = None,
        stdin: bytes = b"",
        timeout_s: float = RUN_TIMEOUT_S,
        limit_bytes: int = OUTPUT_BYTES_MAX,
    ) -> Answer:
        try:
            done = subprocess.run(
                list(argv), input=stdin, capture_output=True, timeout=timeout_s, check=False
            )
        except OSError as error:  # as a shell does: not found is 127, not executable 126
            code = 127 if isinstance(error, FileNotFoundError) else 126
            return Answer(code, b"", f"{argv[0]}: {error.strerror}".encode())
        except subprocess.TimeoutExpired:
            raise DeviceError(f"{argv[0]} did not end within {timeout_s:g} s", "try again") from None
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
        return Answer(code, done.stdout[:limit_bytes], done.stderr[:limit_bytes])

    def read_file(self, path: str, *, as_root: bool = False, run_as: AppUser | None = None) -> bytes:
        with opened(path) as file:
            return file.read(OUTPUT_BYTES_MAX)

    def pull(self, path: str, into: Path, *, as_root: bool = False, run_as: AppUser | None = None) -> None:
        with opened(path) as file, appearing(into) as copy:
            if os.fstat(file.fileno()).st_size > target.PULL_BYTES_MAX:
                raise OSError(errno.EFBIG, f"it has more than {target.PULL_BYTES_MAX} bytes", path)
            shutil.copyfileobj(file, copy)

    def open_agent(
        self, argv: Sequence[str], *, as_root: bool = False, run_as: AppUser | None = None
    ) -> LocalChannel:
        return LocalChannel(argv)

    def relay(self, argv: Sequence[str], *, as_root: bool = False) -> OwnStreams:
        return OwnStreams(argv)

    def deploy(self, files: Mapping[str, Path], *, run_as: AppUser | None = None) -> FilesInPlace:
        return FilesInPlace(files)


def probe_local() -> Mapping[str, Any]:
    """The capabilities of this machine (probe_agent()). An agent that does not run is an error of "bpf"."""
    machine = LocalMachine()
    try:
        return probe_agent(machine, str(find_binary(AGENT, machine.arch)))
    except (TracerError, DeviceError) as error:
        return {"errors": {"bpf": error.message}}
