"""A second user of this machine, whom no session may lend a right: nobody (65534)."""

import os
import signal
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

UID = 65534
needs_second_user = pytest.mark.skipif(os.geteuid() != 0, reason="a second user takes root: run as root")


@contextmanager
def open_to_all(mode: int = 0o1777) -> Iterator[Path]:
    """A folder that every user reaches, unlike tmp_path."""
    with tempfile.TemporaryDirectory(prefix="memleak-test-") as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "shared"
        folder.mkdir()
        folder.chmod(mode)
        yield folder


def null_device(folder: Path) -> Path:
    """A /dev/null of our own: a defect would replace the machine's."""
    device = folder / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        os.close(os.open(device, os.O_WRONLY))
    except PermissionError:
        pytest.skip(f"no devices may be made or used in {folder}")
    return device


def as_second_user(act: Callable[[], object]) -> None:
    """Raises AssertionError if `act` fails in a child that has become the second user."""
    pid = _fork(act)
    assert os.waitpid(pid, 0)[1] == 0


@contextmanager
def second_user_repeats(act: Callable[[], object]) -> Iterator[None]:
    """A child that has become the second user repeats `act`, whatever fails in it."""

    def endlessly() -> None:
        while True:
            try:
                act()
            except OSError:
                continue

    pid = _fork(endlessly)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork(act: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
        act()
    except BaseException:  # noqa: BLE001 - the child must not return into the tests
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
