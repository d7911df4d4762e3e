"""No test is judged by time. Tests that change the code of all processes, and tests that want that of theirs as its file has it, wait for one another."""

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

_LOCK, _QUEUE = (
    Path(tempfile.gettempdir()) / f"memleak-android-tests.code.{name}" for name in ("lock", "queue")
)


@pytest.fixture(autouse=True)
def _code_is_shared(request: pytest.FixtureRequest) -> Iterator[None]:
    """A uprobe of `--all` or `--follow` is an int3 in the page of a library that every process maps: workers of one run share it, too."""
    changes = request.node.get_closest_marker("changes_all_code")
    if not changes and not request.node.get_closest_marker("compares_code"):
        yield
        return
    with _LOCK.open("a") as lock:
        with _QUEUE.open("a") as queue:  # later tests do not keep one from its turn
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(lock, fcntl.LOCK_EX if changes else fcntl.LOCK_SH)
        yield
