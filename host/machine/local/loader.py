"""The objects that execvp() and the dynamic linker would load for a command. Nothing of the command runs.

The program's own linker lists them, as ldd has it do. At the first event the agent checks the result against the process's
mappings.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence

from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.linker_command import words_of_linker
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.machine.parse import last_line, parse_listed
from memleak_android.unwind.file_reading import opened

_DEFAULT_PATH = "/bin:/usr/bin"  # execvp(3) without PATH
_INTERPRETERS_MAX = 4  # BINPRM_MAX_RECURSION minus 1: linux/binfmts.h
_SHEBANG_BYTES = 256  # BINPRM_BUF_SIZE
_LISTING_S = 20.0


def resolve_command(name: str, environment: Mapping[str, str], directory: str = ".") -> str:
    """Path of the ELF file that execvp(name) runs; for a script, of its interpreter.

    Raises TargetError: not found, not executable, interpreters nested too deep.
    """
    path = _find_command(name, environment.get("PATH", _DEFAULT_PATH), directory)
    for _ in range(_INTERPRETERS_MAX + 1):
        words = _interpreter(path)
        if words is None:
            return os.path.realpath(path)
        path = os.path.join(directory, words[0])
    raise TargetError(f"cannot run {name}: its interpreters are nested too deep", "name the program itself")


def interpreter_of(name: str, environment: Mapping[str, str]) -> list[str]:
    """The words that run a script that execvp(name) is given, `/usr/bin/env`, `python3`; [] for a program. Raises TargetError."""
    return _interpreter(_find_command(name, environment.get("PATH", _DEFAULT_PATH), ".")) or []


def _interpreter(path: str) -> list[str] | None:
    """None = an ELF file."""
    try:
        with opened(path) as file:
            head = file.read(_SHEBANG_BYTES)
    except OSError as error:
        raise TargetError(f"cannot run {path}: {error.strerror}") from error
    if head.startswith(b"\x7fELF"):
        return None
    words = head[2:].split(b"\n")[0].split() if head.startswith(b"#!") else []
    return list(map(os.fsdecode, words)) or [
        "/bin/sh"
    ]  # execvp(3): a file of unknown format is given to the shell


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


def command_objects(command: Sequence[str], environment: Mapping[str, str]) -> list[LoadedObject]:
    """As load_order(), of the program of a command; of `ld.so OPTIONS PROGRAM` as that linker does. Raises TargetError."""
    n = words_of_linker(command)
    path = os.path.realpath(command[n]) if n else resolve_command(command[0], environment)
    return load_order(path, environment, linker=command[:n])


def load_order(
    executable: str, environment: Mapping[str, str], directory: str = ".", linker: Sequence[str] = ()
) -> list[LoadedObject]:
    """The objects that starting `executable` loads, in the linker's search order; missing ones are skipped.

    linker: the words that run it; () = the one that it names. A static program is alone. Raises TargetError if the executable cannot be read as an ELF file, or its linker does
    not list what it loads.
    """
    try:
        words = [*linker] or list(filter(None, [ElfFile(executable).interpreter]))
    except OSError as error:
        raise TargetError(f"cannot open {executable}: {error.strerror}") from error
    listed = _listed(words, executable, environment, directory) if words else []
    paths = dict.fromkeys([executable, *(os.path.realpath(os.path.join(directory, path)) for path in listed)])
    return [LoadedObject(path, path) for path in paths]


def _listed(linker: list[str], executable: str, environment: Mapping[str, str], directory: str) -> list[str]:
    """glibc's linker goes on after a missing library if the variable asks for the list (ld.so(8)); others have an option."""
    is_glibc = os.path.basename(linker[0]).startswith("ld-linux")
    argv = [*linker, executable] if is_glibc else [*linker, "--list", executable]
    try:
        done = subprocess.run(
            argv,
            env={**environment, "LD_TRACE_LOADED_OBJECTS": "1"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LISTING_S,
            check=False,
        )
    except OSError:
        return []  # of another machine, or missing: later checks report why the program cannot be traced
    except subprocess.TimeoutExpired as error:
        raise TargetError(f"could not list the libraries of {executable}: {error}") from None
    listed = list(parse_listed(done.stdout.decode("utf-8", "surrogateescape")))
    if not listed:
        reason = last_line(done.stderr) or f"exit code {done.returncode}"
        raise TargetError(f"could not list the libraries of {executable}: {reason}")
    return listed if is_glibc else listed[1:]  # musl's list begins with the linker, and has it again as libc
