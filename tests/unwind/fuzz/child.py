"""Feeds mutated inputs to the targets, in a process of its own with bounds on its memory and on the CPU time of each.

    python -m tests.unwind.fuzz.child KIND[,KIND…] FIRST COUNT SECONDS MEMORY_MB

COUNT of each kind. Prints one line per finding: KIND NUMBER WHAT. Ends with the line `done COUNT` unless an input took
the process down.
"""

import faulthandler
import resource
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from tests.unwind.fuzz.mutations import mutated
from tests.unwind.fuzz.seeds import all_seeds
from tests.unwind.fuzz.targets import run


class TooLong(BaseException):
    """An input that took longer than its share."""


def _give_up(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _input(kind: str, number: int, seeds: dict[str, list[bytes]]) -> bytes:
    of_kind = seeds[kind]
    return mutated(of_kind[number % len(of_kind)], number, of_kind)


def main(kinds: list[str], first: int, count: int, seconds: float, memory_mb: int) -> None:
    faulthandler.enable()
    signal.signal(signal.SIGPROF, _give_up)
    seeds = all_seeds()
    for kind in kinds:
        for seed in seeds[kind]:
            run(kind, seed)  # what it imports lazily does not count
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (memory_mb << 20),) * 2)
    for kind in kinds:
        for number in range(first, first + count):
            found = _finding(kind, _input(kind, number, seeds), seconds)
            if found:
                print(kind, number, found, flush=True)
    print("done", count, flush=True)


def _finding(kind: str, data: bytes, seconds: float) -> str:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        run(kind, data)
    except (Exception, TooLong) as error:  # noqa: BLE001 - what may come is the question
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return f"{type(error).__name__} at {where}: {error}"[:300].replace("\n", " ")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
