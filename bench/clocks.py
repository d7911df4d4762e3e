"""CPU time of others: running processes, and children that have ended."""

import resource
from pathlib import Path


def task_cpu_ns(pid: int) -> int:
    """CPU time of all threads of a running process (scheduler's own sum, Documentation/scheduler/sched-stats.rst)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


def children_cpu_s(whose: int = resource.RUSAGE_CHILDREN) -> float:
    """CPU seconds of all children that ended and were waited for, and of theirs. whose: of getrusage(2)."""
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime
