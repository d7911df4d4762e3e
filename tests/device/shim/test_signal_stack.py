"""What a handler on an alternate stack has interrupted, found in the frames of three architectures (signal_frame.h)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.gcc import DEVICE
from tests.support.workloads import PROGRAMS

MACHINES = [
    ("gcc", ""),
    ("aarch64-linux-gnu-gcc", "qemu-aarch64-static"),
    ("arm-linux-gnueabihf-gcc", "qemu-arm-static"),
]


@pytest.mark.parametrize(("compiler", "emulator"), MACHINES)
def test_the_outermost_frame_leads_there(compiler: str, emulator: str, tmp_path: Path) -> None:
    """Not that of a handler on the same stack, nor a copy."""
    missing = [tool for tool in (compiler, emulator) if tool and shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    source, program = PROGRAMS / "parts" / "signal_stack.c", tmp_path / "program"
    subprocess.run([compiler, "-O1", "-static", f"-I{DEVICE}", "-o", program, source], check=True)
    argv = [emulator, program] if emulator else [program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout == "2 found\n"
