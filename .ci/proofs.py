"""Runs proofs file by file within a time limit, from another file each day: .ci/proofs.py [SECONDS]."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import time
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


def main(seconds: float) -> int:
    deadline, failed = time.monotonic() + seconds, []
    for path in files_of_today(datetime.date.today()):
        name = str(path.relative_to(ROOT))
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        print(f"proof {name}", flush=True)
        words = [sys.executable, "-m", "pytest", "-q", "-m", "proof and not emulator", name]
        try:
            code = subprocess.run(words, cwd=ROOT, timeout=left_s, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"time limit reached: {name} was not finished", flush=True)
            break
        if code not in (0, 5):  # 5: all of its proofs need the emulator
            failed.append(name)
    if failed:
        print(f"failed proofs: {' '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 240))
