"""A process that becomes another program just when it is entered: refused in one line, and it runs on."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.injection import inject, library

pytestmark = pytest.mark.proof

BECOMES_ITSELF = """
import os, sys, time
count = int(sys.argv[1])
print(count, flush=True)
time.sleep(0.02)
os.execv(sys.executable, [sys.executable, sys.argv[2], str(count + 1), sys.argv[2]])
"""


def test_a_program_that_becomes_another_all_the_time(tmp_path: Path) -> None:
    script = tmp_path / "becomes.py"
    script.write_text(BECOMES_ITSELF)
    process = subprocess.Popen([sys.executable, script, "0", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for _ in range(40):
            entered = inject(process.pid, library(), "length_of", "x")
            assert entered.refusal or entered.result == 1
            assert "\n" not in entered.refusal
            assert process.poll() is None, entered
        counts = [int(process.stdout.readline()) for _ in range(5)]
        assert counts == list(range(5))
    finally:
        process.kill()
        process.communicate()
