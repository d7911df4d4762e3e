""".ci/run ends in time whatever hangs within it, and says where."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HANGS = "lint:\n\t@echo it hangs; sleep 1000\n"
TIMED_OUT = 124  # timeout(1)


@pytest.mark.proof
def test_what_hangs_is_ended_and_named(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(HANGS)
    environment = {name: value for name, value in os.environ.items() if name != "CI_RUN_INNER"}
    with subprocess.Popen(
        ["sh", "-c", "trap '' INT; exec .ci/run"],  # as a shell starts what runs in the background
        cwd=tmp_path,
        env=environment | {"CI_RUN_LIMIT": "1h"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout
        while run.stdout.readline() != "it hangs\n":
            assert run.poll() is None
        run.send_signal(signal.SIGALRM)  # timeout(1) takes it for its own: the hour is over
        _, err = run.communicate()
    assert run.returncode == TIMED_OUT
    assert err.splitlines()[-1].endswith("s (limit 1h), in: make lint")
