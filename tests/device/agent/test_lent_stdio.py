"""`memleakd lend` and `borrow`: the streams of one connection become those of a command that another one starts."""

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host.errors import TracerError
from memleak_android.host.machine.binaries import find_binary, local_arch

OTHER_USER = 65534


@pytest.fixture
def agent() -> Iterator[Path]:
    """A directory in which every user may run a program."""
    try:
        found = find_binary("memleakd", local_arch())
    except TracerError as error:
        pytest.skip(str(error))
    folder = Path(tempfile.mkdtemp(prefix="memleak-lend-", dir="/tmp"))
    folder.chmod(0o755)
    shutil.copy(found, folder / "memleakd")
    (folder / "memleakd").chmod(0o755)
    yield folder / "memleakd"
    shutil.rmtree(folder)


def lend(agent: Path, name: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([agent, "lend", name], stdin=pipe, stdout=pipe, stderr=pipe)


def borrow(agent: Path, name: str, user: int | None = None) -> subprocess.CompletedProcess[bytes]:
    """The session itself ends at once: it gets no configuration."""
    argv = [str(agent), "borrow", name, "preload"]
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=40, check=False, user=user
    )


def test_the_lender_ends_once_its_streams_are_lent(agent: Path) -> None:
    name = f"memleak-test-{secrets.token_hex(8)}"
    with lend(agent, name) as lender:
        done = borrow(agent, name)
        assert lender.wait(10) == 0
    assert done.stderr == b""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_other_processes_do_not_get_the_streams(agent: Path) -> None:
    name = f"memleak-test-{secrets.token_hex(8)}"
    with lend(agent, name) as lender:
        done = borrow(agent, name, OTHER_USER)
        assert done.returncode == 5
        assert done.stderr.endswith(
            b"no process of this user lends them (start `memleakd lend` as this user)\n"
        )
        assert lender.poll() is None, "it still waits for the right one"
        assert borrow(agent, name).stderr == b""
        assert lender.wait(10) == 0


@pytest.mark.parametrize("name", ["", "x" * 200])
def test_names_that_no_socket_has(agent: Path, name: str) -> None:
    done = borrow(agent, name)
    assert done.returncode == 5 and done.stderr.endswith(b"name too long\n")
    with lend(agent, name) as lender:
        assert lender.wait(10) == 1
