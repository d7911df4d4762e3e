"""The objects that execvp() and the dynamic linker would load for a command, found without running anything.

ld.so(8) for glibc, ldso/dynlink.c's load_library() for musl. At the first event the agent checks the result against the
process's mappings.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from memleak_android.host.elf.dynamic import BadElfError, ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.ld_so_cache import LdSoCache
from memleak_android.host.machine.local.process import LoadedObject

_DEFAULT_PATH = "/bin:/usr/bin"  # execvp(3) without PATH
_INTERPRETERS_MAX = 4  # BINPRM_MAX_RECURSION minus 1: linux/binfmts.h
_SHEBANG_BYTES = 256  # BINPRM_BUF_SIZE
_OBJECTS_MAX = 4096
_GLIBC_DEFAULT_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_MUSL_DEFAULT_DIRECTORIES = ("/lib", "/usr/local/lib", "/usr/lib")
# libraries that musl answers itself (ldso/dynlink.c, load_library)
_MUSL_OWN = ("libc.", "libpthread.", "librt.", "libm.", "libdl.", "libutil.", "libxnet.")
# x86-64 psABI, "micro-architecture levels": flags of /proc/cpuinfo that distinguish them
_LEVELS = (
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
)


def resolve_command(name: str, environment: Mapping[str, str], directory: str = ".") -> str:
    """Path of the ELF file that execvp(name) runs; for a script, of its interpreter.

    Raises TargetError: not found, not executable, interpreters nested too deep.
    """
    path = _find_command(name, environment.get("PATH", _DEFAULT_PATH), directory)
    for _ in range(_INTERPRETERS_MAX + 1):
        try:
            with open(path, "rb") as file:
                head = file.read(_SHEBANG_BYTES)
        except OSError as error:
            raise TargetError(f"cannot run {path}: {error.strerror}") from error
        if head.startswith(b"\x7fELF"):
            return os.path.realpath(path)
        words = head[2:].split(b"\n")[0].split(None, 1) if head.startswith(b"#!") else []
        # execvp(3): a file of unknown format is given to the shell
        path = os.path.join(directory, os.fsdecode(words[0]) if words else "/bin/sh")
    raise TargetError(f"cannot run {name}: its interpreters are nested too deep", "name the program itself")


def _find_command(name: str, search_path: str, directory: str) -> str:
    if not name:
        raise TargetError("cannot run a command without a name")
    if "/" in name:
        candidates = [os.path.join(directory, name)]
    else:
        candidates = [os.path.join(directory, part or ".", name) for part in search_path.split(":")]
    existing = [path for path in candidates if os.path.exists(path)]
    for path in existing:
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    if existing:
        raise TargetError(f"cannot run {existing[0]}: it is not an executable file")
    raise TargetError(
        f"cannot run {name}: not found", "" if "/" in name else "look at PATH, or give its path"
    )


def load_order(executable: str, environment: Mapping[str, str], directory: str = ".") -> list[LoadedObject]:
    """The objects that starting `executable` loads, in the linker's search order; missing ones are skipped.

    A static program is alone. Raises TargetError if the executable cannot be read as an ELF file.
    """
    try:
        elf = ElfFile(executable)
    except OSError as error:
        raise TargetError(f"cannot open {executable}: {error.strerror}") from error
    if not elf.interpreter:
        return [LoadedObject(executable, executable)]
    kind = _Musl if os.path.basename(elf.interpreter).startswith("ld-musl-") else _Glibc
    return kind(elf, environment, directory).load()


@dataclass(eq=False, slots=True)
class _Loaded:
    elf: ElfFile
    names: set[str]
    loader: _Loaded | None  # the object that needed it


@dataclass(slots=True)
class _Linker:
    """Breadth-first loading; subclasses differ in their search paths."""

    executable: ElfFile
    environment: Mapping[str, str]
    directory: str
    loaded: list[_Loaded] = field(default_factory=list)
    files: dict[tuple[int, int], _Loaded] = field(default_factory=dict)

    def load(self) -> list[LoadedObject]:
        main = self._add(self.executable, set(), None)
        for name in self._preloads():
            self._load(name, main)
        for item in self.loaded:  # grows during the loop, which makes it breadth-first
            for name in item.elf.needed:
                self._load(name, item)
        return [LoadedObject(item.elf.path, item.elf.path) for item in self.loaded]

    def _add(self, elf: ElfFile, names: set[str], loader: _Loaded | None) -> _Loaded:
        status = os.stat(elf.path)
        known = self.files.get((status.st_dev, status.st_ino))
        if known is not None:
            known.names |= names
            return known
        item = _Loaded(elf, names | ({elf.soname} if elf.soname else set()), loader)
        self.files[status.st_dev, status.st_ino] = item
        if len(self.loaded) < _OBJECTS_MAX:
            self.loaded.append(item)
        return item

    def _load(self, name: str, by: _Loaded) -> None:
        if any(name in item.names for item in self.loaded):
            return
        for path in self._candidates(name, by):
            elf = self._usable(path)
            if elf is not None:
                self._add(elf, {name}, by)
                return

    def _usable(self, path: str) -> ElfFile | None:
        """The file, if it is a library for this program's machine."""
        try:
            elf = ElfFile(os.path.realpath(path))
        except (OSError, BadElfError):
            return None
        same = (elf.elf_class, elf.machine) == (self.executable.elf_class, self.executable.machine)
        return elf if same else None

    def _candidates(self, name: str, by: _Loaded) -> Iterator[str]:
        raise NotImplementedError

    def _preloads(self) -> list[str]:
        return self.environment.get("LD_PRELOAD", "").replace(":", " ").split()

    def _library_path(self) -> list[str]:
        value = self.environment.get("LD_LIBRARY_PATH", "")
        return [part or "." for part in value.replace(";", ":").split(":")] if value else []

    def _expand(self, directories: str, origin: ElfFile) -> Iterator[str]:
        """Splits a DT_RPATH or DT_RUNPATH and replaces its dynamic string tokens (ld.so(8))."""
        for part in directories.split(":") if directories else ():
            for library in ("lib/x86_64-linux-gnu", "lib64") if "LIB" in part else ("",):
                for token, value in (
                    ("ORIGIN", os.path.dirname(os.path.realpath(origin.path))),
                    ("LIB", library),
                    ("PLATFORM", "x86_64"),
                ):
                    part = part.replace("${" + token + "}", value).replace("$" + token, value)
                yield part or "."


@dataclass(slots=True)
class _Glibc(_Linker):
    """elf/dl-load.c, _dl_map_object."""

    cache: LdSoCache = field(default_factory=LdSoCache.read)
    levels: tuple[str, ...] = field(default_factory=lambda: supported_levels(_cpu_flags()))

    def _preloads(self) -> list[str]:
        try:
            with open("/etc/ld.so.preload", encoding="utf-8", errors="surrogateescape") as file:
                system = file.read(1 << 16).replace(":", " ").split()
        except OSError:
            system = []
        # not super(): a dataclass with slots replaces the class in which super() was compiled
        return _Linker._preloads(self) + system

    def _candidates(self, name: str, by: _Loaded) -> Iterator[str]:
        if "/" in name:
            yield next(self._expand(name, by.elf)) if "$" in name else os.path.join(self.directory, name)
            return
        searched: list[str] = []
        if not by.elf.runpath:
            searched += self._inherited_rpath(by)
        searched += self._library_path()
        searched += self._expand(by.elf.runpath, by.elf)
        yield from self._in_directories(searched, name)
        if not by.elf.ignores_default_directories:
            yield from self.cache.find(name, by.elf.machine, self.levels)
            yield from self._in_directories(_GLIBC_DEFAULT_DIRECTORIES, name)

    def _inherited_rpath(self, by: _Loaded) -> Iterator[str]:
        """DT_RPATH of the object, of its loaders up the chain, then of the executable."""
        chain: list[_Loaded] = []
        item: _Loaded | None = by
        while item is not None:
            chain.append(item)
            item = item.loader
        for item in dict.fromkeys([*chain, self.loaded[0]]):
            if not item.elf.runpath:
                yield from self._expand(item.elf.rpath, item.elf)

    def _in_directories(self, directories: Iterable[str], name: str) -> Iterator[str]:
        for directory in directories:
            for level in self.levels:
                yield os.path.join(self.directory, directory, "glibc-hwcaps", level, name)
            yield os.path.join(self.directory, directory, name)


@dataclass(slots=True)
class _Musl(_Linker):
    def _candidates(self, name: str, by: _Loaded) -> Iterator[str]:
        if name.startswith(_MUSL_OWN):
            yield self.executable.interpreter
            return
        if "/" in name:
            yield os.path.join(self.directory, name)
            return
        directories = self._library_path()
        item: _Loaded | None = by
        while item is not None:
            directories += self._expand(item.elf.runpath or item.elf.rpath, item.elf)
            item = item.loader
        for part in (*directories, *self._system_directories()):
            yield os.path.join(self.directory, part, name)

    def _system_directories(self) -> list[str]:
        """/etc/ld-musl-ARCH.path, separated by colons or newlines. Its prefix is the interpreter's."""
        stem = os.path.basename(self.executable.interpreter).partition(".so")[0]
        try:
            with open(f"/etc/{stem}.path", encoding="utf-8", errors="surrogateescape") as file:
                return file.read(1 << 16).replace("\n", ":").strip(":").split(":")
        except OSError:
            return list(_MUSL_DEFAULT_DIRECTORIES)


def supported_levels(flags: set[str]) -> tuple[str, ...]:
    """Names of the glibc-hwcaps directories for a CPU with these flags, best first."""
    names: list[str] = []
    for name, needed in _LEVELS:
        if not needed <= flags:
            break
        names.insert(0, name)
    return tuple(names)


def _cpu_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("flags"):
                    return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()
