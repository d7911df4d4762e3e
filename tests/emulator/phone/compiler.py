"""Programs for the machine: its own by zig's clang, the C++ of its apps by Debian's cross compilers.

zig would do for both, but builds a libc++ for every set of flags first, for a minute or two.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.debian_packages import Unavailable

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "emulator"
WARNINGS = ("-Wall", "-Wextra", "-Werror")
COMPILE_SECONDS = 600.0  # zig builds a libc when it meets a target for the first time


def zig(target: str) -> tuple[str, ...]:
    """zig's C compiler for a target, which brings the libc along. Raises Unavailable."""
    if importlib.util.find_spec("ziglang") is None:
        raise Unavailable("ziglang, which compiles the machine's programs, is not installed (make dev)")
    return (sys.executable, "-m", "ziglang", "cc", "-target", target)


def cross(compiler: str) -> tuple[str, ...]:
    """One of Debian's cross compilers, e.g. "aarch64-linux-gnu-g++". Raises Unavailable."""
    if shutil.which(compiler) is None:
        raise Unavailable(f"{compiler} is not installed (.ci/packages.txt names its package)")
    return (compiler,)


def compiled(
    name: str,
    compiler: Sequence[str],
    flags: Sequence[str | Path],
    sources: Sequence[Path],
    depends: Sequence[Path] = (),
) -> Path:
    """The file `name` made of `sources`; compiled again when one of them, of `depends`, a header or a flag changes."""
    words = [*compiler, *WARNINGS, *map(str, sources), *map(str, flags)]
    digest = hashlib.sha256(repr(words).encode())
    for path in sorted(
        {*sources, *depends, *(header for source in sources for header in source.parent.glob("*.h"))}
    ):
        digest.update(path.read_bytes())
    made = BUILD / "programs" / digest.hexdigest()[:12] / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        half = made.with_name(f"{name}.{os.getpid()}")
        _run([*words, "-o", str(half)])
        half.rename(made)
    return made


def _run(words: list[str]) -> None:
    cache = str(ROOT / "build" / "zig-cache")
    done = subprocess.run(
        words, env=dict(os.environ, ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache),
        capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stderr}")
