"""Programs to run in a guest: compiled here by GCC and LLVM, or taken from Debian as they are."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.debian_packages import packages
from tests.unwind.ground_truth.guest import Guest, Run, Sampling

_HERE = Path(__file__).resolve().parent
_BUILT = _HERE.parents[2] / "build" / "ground_truth"
_TRIPLES = {"arm64": "aarch64-linux-gnu", "arm32": "arm-linux-gnueabihf"}
_DEBIAN = {"arm64": "arm64", "arm32": "armhf"}
_LIBRARIES = ("libc6", "libgcc-s1", "zlib1g", "libtinfo6", "libreadline8")


@dataclass(frozen=True, slots=True)
class Build:
    """One way to compile hard.cc."""

    name: str
    arch: str
    is_llvm: bool
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program of a Debian package and its arguments; other packages that it needs."""

    path: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]


BUILDS = (
    Build("GCC, signed returns, landing pads", "arm64", False, ("-O2", "-mbranch-protection=standard")),
    Build("GCC, signed in leaves too, no frame pointer", "arm64", False,
        ("-O3", "-mbranch-protection=pac-ret+leaf", "-fomit-frame-pointer")),
    Build("GCC, small", "arm64", False, ("-Os",)),
    Build("LLVM", "arm64", True, ("-O2",)),
    Build("LLVM, signed returns, landing pads", "arm64", True, ("-O2", "-mbranch-protection=standard", "-fomit-frame-pointer")),
    Build("GCC, A32", "arm32", False, ("-O2", "-marm", "-funwind-tables")),
    Build("GCC, T32", "arm32", False, ("-O2", "-mthumb", "-funwind-tables")),
    Build("GCC, T32, small", "arm32", False, ("-Os", "-mthumb", "-funwind-tables")),
    Build("LLVM, A32", "arm32", True, ("-O2", "-marm", "-funwind-tables")),
    Build("LLVM, T32", "arm32", True, ("-O2", "-mthumb", "-funwind-tables")),
)  # fmt: skip

_SQL = """create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c where x<300)
insert into t select x, x*7%13 from c; create index i on t(b); select b,count(*),group_concat(a) from t group by b;
select sum(a) from t where b in (select b from t where a<10);"""
PACKAGED = (
    Packaged("usr/bin/sqlite3", (":memory:", _SQL), ("sqlite3", "libsqlite3-0")),
    Packaged("usr/bin/jq", ("-n", "[range(200)|{a:.,b:(.*7%13|tostring)}]|group_by(.b)|map(length)"),
        ("jq", "libjq1", "libonig5")),
    Packaged("usr/bin/gawk", ("BEGIN{for(i=0;i<900;i++){a[i%17]=a[i%17] sprintf(\"%d\",i)} for(k in a) print length(a[k])}",),
        ("gawk", "libmpfr6", "libgmp10", "libsigsegv2")),
    Packaged("usr/bin/lua5.4", ("-e", "local t={} for i=1,900 do t[i]=(i*7919)%1000 end table.sort(t) print(#t)"),
        ("lua5.4",)),
)  # fmt: skip


def run_build(build: Build, sampling: Sampling, *arguments: str) -> Run:
    """hard.cc, compiled and run. Skips the test where there is no compiler."""
    program = _compiled(build)
    vdso = _vdso() if build.arch == "arm64" else None
    return Guest(build.arch, Path("/"), sampling, vdso).run(program, list(arguments), [])


def run_packaged(arch: str, program: Packaged, sampling: Sampling) -> Run:
    """A packaged program, with all symbols bound before it starts, as Android's linker does.

    glibc's resolver for lazy binding has CFI that is 16 bytes off on arm64 (_dl_runtime_resolve, 2.36).
    """
    root = packages(_DEBIAN[arch], *_LIBRARIES, *program.needs)
    guest = Guest(arch, root, sampling)
    return guest.run(root / program.path, list(program.arguments), ["LC_ALL=C", "LD_BIND_NOW=1"])


def _compiled(build: Build) -> Path:
    compiler = _cross_compiler(build.arch)
    _BUILT.mkdir(parents=True, exist_ok=True)
    name = f"hard-{build.arch}-{'llvm' if build.is_llvm else 'gcc'}{''.join(build.flags).replace('=', '-')}"
    built, source = _BUILT / name, _HERE / "hard.cc"
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        translate = [compiler]
        if build.is_llvm:
            pytest.importorskip("ziglang", reason="ziglang, LLVM for other machines, is not installed")
            translate = [sys.executable, "-m", "ziglang", "c++", *_llvm_target(build)]
            translate.append("-fno-sanitize=all")
        subprocess.run(
            [*translate, *build.flags, "-DEXCEPTIONS", "-c", source, "-o", f"{built}.o"], check=True
        )
        subprocess.run([compiler, "-static", f"{built}.o", "-o", built], check=True)
    return built


def _llvm_target(build: Build) -> list[str]:
    triple = _TRIPLES[build.arch]
    if "-mthumb" not in build.flags:
        return ["-target", triple]
    # ziglang takes the instruction set from the target, and brings no headers of glibc for this one
    return ["-target", triple.replace("arm-", "thumb-"), "-isystem", f"/usr/{triple}/include"]


def _vdso() -> Path:
    built = _BUILT / "vdso-arm64.so"
    if not built.exists():
        command = [_cross_compiler("arm64"), "-shared", "-nostdlib", "-Wl,-e,sigreturn"]
        subprocess.run([*command, _HERE / "vdso_arm64.S", "-o", built], check=True)
    return built


def _cross_compiler(arch: str) -> str:
    compiler = f"{_TRIPLES[arch]}-g++"
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not on this machine (apt-get install g++-{_TRIPLES[arch]})")
    return compiler
