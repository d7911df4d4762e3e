"""The same targets under a coverage-guided fuzzer (atheris, the extra `fuzz`): inputs that reach new code are kept.

    python -m tests.unwind.fuzz.coverage_guided KIND FOLDER [libFuzzer's options, as -max_total_time=600 -rss_limit_mb=2048]

FOLDER keeps the inputs between runs; it is filled with the seeds first. An input that fails is written to the current
folder as crash-*, timeout-* or oom-*.
"""

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["memleak_android"]):
    from tests.unwind.fuzz.targets import run

from tests.unwind.fuzz.seeds import all_seeds


def main(kind: str, folder: Path, options: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, seed in enumerate(all_seeds()[kind]):
        (folder / f"seed-{i}").write_bytes(seed)
    limits = ["-timeout=10", "-rss_limit_mb=2048", f"-max_len={1 << 16}"]
    atheris.Setup([sys.argv[0], *limits, *options, str(folder)], lambda data: run(kind, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
