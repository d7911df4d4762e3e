"""Mutated ELF files, CFI, exidx tables, expressions, xz streams, maps, snapshot folders,
recordings and names: used, or refused in one line.

Each input has two seconds of CPU time and some hundred megabytes beyond what the process begins with; a run is repeated
exactly by its numbers. Findings become tests in test_findings.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("elf", "cfi", "exidx", "expression", "xz", "maps", "snapshot", "recording", "names")
MEMORY_MB = 768


def findings(kind: str, first: int, count: int, seconds: float) -> list[str]:
    """What `count` inputs from number `first` on did to the process that they were given to."""
    command = [sys.executable, "-m", "tests.unwind.fuzz.child", kind, str(first), str(count), str(seconds), str(MEMORY_MB)]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False, errors="replace"
    )
    lines = done.stdout.splitlines()
    if not lines or lines[-1] != f"done {count}":
        return [*lines, f"{kind} from {first} on: exit code {done.returncode}", done.stderr[-2000:]]
    return lines[:-1]


def test_four_hundred_mutated_inputs_do_no_harm() -> None:
    assert findings(",".join(KINDS), 0, 60, 2) == []


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [10_000, 20_000, 30_000])
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_mutated_inputs_do_no_harm(kind: str, first: int) -> None:
    """3 x 9 x 400 inputs."""
    assert findings(kind, first, 400, 2) == []


def test_a_finding_is_reported() -> None:
    """Checks that these tests report a target that fails, hangs or takes all memory."""
    script = (
        "from tests.unwind.fuzz import targets, child\n"
        "calls = []\n"
        "def bad(data):\n"
        "    calls.append(data)\n"
        "    if len(calls) == 2: raise KeyError('x')\n"
        "    while len(calls) == 3: pass\n"
        "    if len(calls) == 4: bytearray(1 << 32)\n"
        "targets.TARGETS['maps'] = bad\n"
        "child.main(['maps'], 0, 4, 0.1, 256)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    errors = [line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("maps")]
    assert errors == [["0", "KeyError"], ["1", "TooLong"], ["2", "MemoryError"]], done.stderr
