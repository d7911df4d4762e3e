"""Programs at rest, and what elfutils says about their stacks."""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def blocked(argv: list[str]) -> Iterator[int]:
    """A program that waits for its standard input (or sleeps): its pid."""
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_until_asleep(process.pid)
            yield process.pid
        finally:
            process.kill()


@contextmanager
def another_thread() -> Iterator[int]:
    """The id of a thread of this process that waits."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        over.set()
        thread.join()


def wait_until_asleep(pid: int, in_a_row: int = 20) -> None:
    """Until the process has been seen asleep, without using CPU, for a fifth of a second."""
    seen, before = 0, None
    deadline = time.monotonic() + 100
    while seen < in_a_row:
        assert time.monotonic() < deadline, f"pid {pid} does not come to rest"
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        now = fields[0], fields[11], fields[12]
        seen = seen + 1 if now == before and now[0] == "S" else 0
        before = now
        time.sleep(0.01)


def eu_stack(pid: int) -> list[int]:
    """The addresses of one thread's frames as elfutils finds them."""
    if shutil.which("eu-stack") is None:
        pytest.skip("eu-stack is not installed (apt-get install elfutils)")
    run = subprocess.run(
        ["eu-stack", "-n", "0", "-1", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return [int(match[1], 16) for match in re.finditer(r"^#\d+\s+0x([0-9a-f]+)", run.stdout, re.MULTILINE)]
