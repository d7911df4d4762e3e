"""A command on a device before it runs: its ELF file, and the libraries that its dynamic linker would load."""

import os
from collections.abc import Sequence

from memleak_android.host.console import one_line
from memleak_android.host.elf.dynamic import ElfFile
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.adb.pulled_files import PulledFiles, RemoteFile
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.machine.parse import parse_listed
from memleak_android.host.machine.target import Target

_INTERPRETERS_MAX = 4  # as execve() follows them: linux/binfmts.h, BINPRM_MAX_RECURSION
_BIONIC_LINKERS = ("linker64", "linker_asan64", "linker_hwasan64")
_BIONIC = "/system/lib64/libc.so"  # since Android 10 a link into the runtime's APEX (bionic/apex/Android.bp)

# $1: the command. If the shell finds no path, it is printed unchanged.
_FIND = """f=$(command -v -- "$1"); case $f in /*) ;; *) f=$1 ;; esac; readlink -f -- "$f" || echo "$f\""""
_REAL = 'for f in "$@"; do readlink -f -- "$f" || echo "$f"; done'


def find_program(target: Target, command: str, pulled: PulledFiles) -> RemoteFile | None:
    """The ELF file that execve() runs; of a script its interpreter's. None for an unreadable file or one that is not a program: the agent will report why it cannot be started."""
    answer = target.run(["sh", "-c", _FIND, "sh", command])
    path = answer.out.decode("utf-8", "surrogateescape").rstrip("\r\n")
    for _ in range(_INTERPRETERS_MAX):
        file = pulled.find([path]) if path.startswith("/") else None
        if file is None:
            return None
        if file.head.startswith(b"\x7fELF"):
            return file
        words = file.head[2:256].split(b"\n")[0].split() if file.head.startswith(b"#!") else []
        if not words:
            return None
        path = os.fsdecode(words[0])
    return None


def loaded_objects(target: Target, program: RemoteFile, pulled: PulledFiles) -> tuple[list[str], str]:
    """Paths in the linker's search order for symbols, and a remark if they are a guess ("" = none).

    The program's own linker lists them, by the option that ldd uses. glibc's, musl's and, since Android 11, bionic's have it.
    Nothing of the program runs. Raises TargetError if the file is not an ELF file, or if a linker other than bionic's prints
    nothing, DeviceError.
    """
    interpreter = ElfFile(pulled.copy(program)).interpreter
    if not interpreter:
        return [program.path], ""
    answer = target.run([interpreter, "--list", program.path], as_root=target.has_root)
    listed = list(parse_listed(answer.out.decode("utf-8", "surrogateescape"))) if not answer.code else []
    if listed:
        return _real_paths(target, [program.path, *listed]), ""
    reason = answer.complaint or f"exit code {answer.code}"
    if os.path.basename(interpreter) not in _BIONIC_LINKERS:
        raise TargetError(
            f"could not list the libraries of {one_line(program.path)} ({reason})", "use --tracer preload"
        )
    remark = (
        f"{interpreter} does not list what it loads ({reason}): its malloc is taken to be that of {_BIONIC}"
    )
    return _real_paths(target, [program.path, _BIONIC]), remark


def fetch_until(
    pulled: PulledFiles, paths: Sequence[str], functions: set[str], *, whole: bool
) -> list[LoadedObject]:
    """Copies of these files up to the first definition of each function; all of them if `whole`."""
    found, wanted = list[LoadedObject](), set(functions)
    for path in paths:
        file = pulled.find([path])
        if file is None:
            continue
        copy = os.fspath(pulled.copy(file))
        found.append(LoadedObject(path, copy))
        wanted -= {symbol.name for symbol in ElfFile(copy).dynamic_functions(wanted)}
        if not wanted and not whole:
            break
    if not found:
        raise TargetError(f"{one_line(paths[0])} could not be pulled", "see `memleak-android doctor`")
    return found


def _real_paths(target: Target, paths: Sequence[str]) -> list[str]:
    """The paths as mappings show them."""
    lines = target.run(["sh", "-c", _REAL, "sh", *paths]).out.decode("utf-8", "surrogateescape").splitlines()
    return list(dict.fromkeys(lines if len(lines) == len(paths) else paths))
