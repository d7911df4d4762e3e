"""The dataset as a program reads it: by its own thread alone."""

import subprocess
import sys
from pathlib import Path

from memleak_android.host.fleet.dataset import Dataset
from memleak_android.host.fleet.processing import Part
from memleak_android.host.fleet.rows import broken_row
from memleak_android.host.fleet.schema import SITES, to_parquet

PARTS = 40
READER = f"""
import os, sys
from memleak_android.host.fleet.dataset import Dataset
dataset = Dataset(sys.argv[1])
before = set(os.listdir("/proc/self/task"))
tables = dataset.read("recordings", [f"{{i:03}}" for i in range({PARTS})])
print(sum(map(len, tables)), len(set(os.listdir("/proc/self/task")) - before))
"""


def test_reading_starts_no_thread(tmp_path: Path) -> None:
    """One of Arrow's own that drops an object of Python's while the interpreter ends would abort the process."""
    dataset = Dataset(str(tmp_path))
    for i in range(PARTS):
        row = broken_row(f"{i}.memleak", 1, "", "cut")
        dataset.add(Part(f"{i:03}", to_parquet(row), to_parquet(SITES.empty_table())))
    done = subprocess.run(
        [sys.executable, "-c", READER, tmp_path], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.split() == [str(PARTS), "0"]
