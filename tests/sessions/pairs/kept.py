"""What programs/pool.c keeps, by pairs: bytes and objects of each, with whole stacks."""

from typing import Any

# 30 blocks of 1,000 to 1,002 bytes. A call inside another of the pair is part of it; what fails holds nothing, and leaves
# what it was to resize.
POOL = {
    ("pool_take", "keep_blocks"): (30 * 1001, 30),
    ("pool_take_many", "main"): (200, 1),
    ("pool_open", "main"): (300, 1),
    ("pool_resize", "resize"): (700, 1),
}
# One end of the pipe is closed; dup2() onto a descriptor closes it.
FILES = {
    ("open", "leak_files"): (7, 7),
    ("pipe", "leak_files"): (1, 1),
    ("dup2", "leak_files"): (1, 1),
    ("socketpair", "leak_files"): (2, 2),
}
# Five created, one joined, one detached.
THREADS = {("pthread_create", "leak_threads"): (3, 3)}


def held(report: dict[str, Any], kind: str) -> dict[tuple[str, str], tuple[int, int]]:
    """(function, its caller) → bytes and objects."""
    found = {}
    for site in report["sites"]:
        if site["kind"] == kind:
            assert site["end"] == "ROOT", site
            names = [frame["function"] for frame in site["frames"]]
            caller = names[1].partition(".")[0].replace("pool_main", "main")  # as it is called in a library
            found[names[0], caller] = site["inuse_space"], site["inuse_objects"]
    return found


def check_kept(report: dict[str, Any]) -> None:
    assert held(report, "pair:pool") == POOL, report["sites"]
    assert held(report, "pair:fd") == FILES, report["sites"]
    assert held(report, "pair:pthread") == THREADS, report["sites"]
