"""A worker's memory is that of one recording, however many it has worked on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FEW, MANY = 10, 60
GROWTH_MAX_KIB = 24 << 10  # libc's file, its symbols and lines alone take more than 10 MiB a recording

WORKER = f"""
import resource, sys
from memleak_android.host.fleet.processing import Settings, process
from memleak_android.host.fleet.sources import list_sources
recordings, _ = list_sources([sys.argv[1]])
for number, one in enumerate(recordings[:{MANY}], 1):
    part = process(one, Settings())
    assert part.is_final
    if number in ({FEW}, {MANY}):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_what_a_worker_holds_does_not_grow(farm: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, farm], capture_output=True, text=True, timeout=250, check=True
    )
    few, many = map(int, done.stdout.split())
    assert many - few < GROWTH_MAX_KIB, (few, many)
