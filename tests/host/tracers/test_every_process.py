"""Files of processes that may define malloc, for a session of every process."""

import os
import shutil
from pathlib import Path

import pytest

from memleak_android.host.tracers.agent.session_options import AllocatorChoice
from memleak_android.host.tracers.local.every_process import plan_every_process
from tests.support.attached_session import started, workload
from tests.support.injection import library


def test_a_library_that_cannot_be_read_may_define_malloc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes before libc, whose calls are counted."""
    damaged = tmp_path / "libdamaged.so"
    shutil.copy(library(), damaged)
    with started(workload(), "load", "0", env={**os.environ, "LD_PRELOAD": str(damaged)}) as process:
        with damaged.open("r+b") as file:
            file.write(bytes(4))
        monkeypatch.setattr(os, "listdir", lambda _: [str(process.pid)])
        plan = plan_every_process(AllocatorChoice())
    (note,) = (note for note in plan.notes if str(damaged) in note)
    assert note == (
        f"{damaged} cannot be read as an ELF file: no ELF magic;"
        " calls of 1 process are missing if it defines malloc: attach_workload"
    )
    assert len(plan.files) == 1
