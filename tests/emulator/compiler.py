"""Programs for the machine, compiled by zig's clang: static ones on musl, dynamic ones on the image's own glibc."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.emulator.debian import BUILD, Unavailable

ROOT = BUILD.parents[1]
WARNINGS = ("-Wall", "-Wextra", "-Werror")
COMPILE_SECONDS = 600.0  # zig builds a libc and a libc++ when it meets a target for the first time


def compiled(name: str, target: str, flags: Sequence[str | Path], sources: Sequence[Path]) -> Path:
    """The file `name` made of `sources` for zig's `target`; compiled again when a source, header or flag changes."""
    words = [str(flag) for flag in flags]
    digest = hashlib.sha256(repr((target, words)).encode())
    for path in sorted({*sources, *(header for source in sources for header in source.parent.glob("*.h"))}):
        digest.update(path.read_bytes())
    made = BUILD / "programs" / f"{target}-{digest.hexdigest()[:12]}" / name
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        half = made.with_name(f"{name}.{os.getpid()}")
        _zig(target, [*words, *map(str, sources), "-o", str(half)])
        half.rename(made)
    return made


def _zig(target: str, words: list[str]) -> None:
    if importlib.util.find_spec("ziglang") is None:
        raise Unavailable("ziglang, which compiles the machine's programs, is not installed (make dev)")
    language = "c++" if any(word.endswith(".cc") for word in words) else "cc"
    cache = str(ROOT / "build" / "zig-cache")
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", language, "-target", target, *WARNINGS, *words],
        env=dict(os.environ, ZIG_GLOBAL_CACHE_DIR=cache, ZIG_LOCAL_CACHE_DIR=cache),
        capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"zig {language} -target {target} {' '.join(words)}\n{done.stderr}")
