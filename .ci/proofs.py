"""Runs proofs within a time limit, a file for each processor at once, from another file each day: .ci/proofs.py [SECONDS]."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STEP = 37  # files a day: no divisor of their number


def files_of_today(today: datetime.date) -> list[Path]:
    """All files with proofs, beginning at today's."""
    files = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if re.search(r"mark\.proof\b", path.read_text())
    ]
    begin = today.toordinal() * STEP % len(files)
    return files[begin:] + files[:begin]


def holds(path: Path, deadline: float) -> bool:
    """False: a proof failed. Prints what pytest did; a file that is not begun or finished in time holds."""
    name, left_s = str(path.relative_to(ROOT)), deadline - time.monotonic()
    if left_s <= 0:
        return True
    words = [sys.executable, "-m", "pytest", "-q", "-m", "proof and not emulator", name]
    try:
        done = subprocess.run(words, cwd=ROOT, timeout=left_s, check=False, text=True, stdout=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        print(f"proof {name}\ntime limit reached: it was not finished", flush=True)
        return True
    print(f"proof {name}\n{done.stdout}", flush=True)
    return done.returncode in (0, 5)  # 5: all of its proofs need the emulator


def main(seconds: float) -> int:
    files, deadline = files_of_today(datetime.date.today()), time.monotonic() + seconds
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        all_hold = list(pool.map(partial(holds, deadline=deadline), files))
    failed = [str(path.relative_to(ROOT)) for path, one in zip(files, all_hold, strict=True) if not one]
    if failed:
        print(f"failed proofs: {' '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 240))
