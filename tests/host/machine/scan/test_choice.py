"""A look into a process of this machine: the agent's, and our own where that one fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.scan import choice as local_scan
from memleak_android.host.machine.scan.words import MemoryScan
from tests.support.running_program import blocked

NO_BLOCKS = np.empty(0, np.uint64)


def test_the_agent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object) -> MemoryScan:
        raise AssertionError("the agent could have done it")

    monkeypatch.setattr(local_scan, "scan_memory", never)
    with blocked(["/bin/cat"]) as pid:
        scan = local_scan.scan_local_memory(pid, NO_BLOCKS)
    assert scan.n_threads == 1 and scan.scanned_bytes > 4096


def test_an_agent_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_scan, "find_binary", lambda name, arch: Path("/bin/false"))
    with blocked(["/bin/cat"]) as pid:
        scan = local_scan.scan_local_memory(pid, NO_BLOCKS)
    assert scan.n_threads == 1 and scan.scanned_bytes > 4096


def test_neither_can() -> None:
    with pytest.raises(TargetError, match="ended before its memory could be looked at"):
        local_scan.scan_local_memory(2**22 + 1, NO_BLOCKS)
