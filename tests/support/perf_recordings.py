"""Recordings of clang and python3 by perf, made on the spot."""

import shutil
import subprocess
from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "unwind" / "oracle"
CLANGS = ("clang-14", "clang-16", "clang-19", "clang")


def clang(folder: Path, depth: int) -> list[str]:
    """Compiling templates; more depth takes longer. Raises LookupError where there is no clang."""
    program = next((name for name in CLANGS if shutil.which(name)), None)
    if program is None:
        raise LookupError("clang is not installed")
    source, output = str(_FOLDER / "templates.cc"), str(folder / "templates.o")
    return [program, "-O2", f"-DDEPTH={depth}", "-c", source, "-o", output]


def python(rounds: int) -> list[str]:
    """The distribution's interpreter on documents, a tenth of a second a round."""
    if not Path("/usr/bin/python3").exists():
        raise LookupError("/usr/bin/python3 is not installed")
    return ["/usr/bin/python3", str(_FOLDER / "documents.py"), str(rounds)]


def record(path: Path, command: list[str], *, stack_bytes: int, frequency: int) -> Path:
    """Samples of the CPU clock with registers and stacks. Raises LookupError where perf cannot record."""
    if shutil.which("perf") is None:
        raise LookupError("perf is not installed (Debian: linux-perf)")
    words = ["perf", "record", "-q", "--no-buildid-cache"]  # the user's ~/.debug
    words += ["-e", "cpu-clock", "-F", str(frequency), "--call-graph", f"dwarf,{stack_bytes}"]
    done = subprocess.run([*words, "-o", str(path), *command], check=False, capture_output=True, text=True)
    if done.returncode or not path.exists():
        reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise LookupError(f"perf cannot record here: {reason}")
    return path
