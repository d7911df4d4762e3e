"""A child that holds more than its parent, which is measured: named from its second snapshot on."""

import subprocess
import sys

import pytest

from memleak_android.host.heap.capture import Capture
from memleak_android.host.session.unmeasured_children import UnmeasuredChildren

HOLDS = "import sys; kept = bytearray(b'x') * (%d << 20); print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(("megabytes", "is_named"), [(60, True), (0, False)])
def test_the_largest_child_is_named(megabytes: int, is_named: bool) -> None:
    """In a parent of some 20 MiB."""
    parent = f"import subprocess, sys; kept = bytearray(b'x') * (20 << 20); subprocess.run([sys.executable, '-S', '-c', {HOLDS % megabytes!r}])"
    capture = Capture()
    observer = UnmeasuredChildren(capture)
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as target:
        assert target.stdout is not None and target.stdout.readline() == b"\n"
        capture.session |= {"pid": target.pid}
        observer.snapshot_arrived()
        assert capture.session.findings.left_out == (), "it may be about to exec"
        observer.snapshot_arrived()
        observer.snapshot_arrived()
        assert len(capture.session.findings.left_out) == is_named
        target.communicate(b"")
    observer.snapshot_arrived()  # of processes that have ended
    assert all("--follow" in text for text in capture.session.findings.left_out)
