"""Demangles names of C++ (Itanium) and Rust; other names come back unchanged.

A mangled name may refer to its earlier parts, to parts around them and to lists (Itanium C++ ABI §5.1.10; Rust RFC 2603,
"Back references"): 65 characters can mean 17 MB, and 240 more than any machine has. LLVM's demangler bounds neither time
nor memory. A process with limits (demangling_limits.py) demangles names with references; few others are demangled here.
"""

import atexit
import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence

from memleak_android.host.symbols.demangling_limits import message, receive, send
from memleak_android.host.symbols.name_schemes import text_of_name

_NAMES_PER_REQUEST = 1024  # a name that ends the process has the others of its request asked for one by one
# No name of a compiler ends the process, so a program in which many do is hostile: they may take 16 times CPU_S.
_STARTS_MAX = 16


class DemanglingProcess:
    """Starts the process with the first request, and again after a name has ended it. Callable from any thread.

    After _STARTS_MAX starts all names are refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # a forked child must not share the pipes
        self._starts_left = _STARTS_MAX
        atexit.register(self.close)

    def demangle(self, names: Sequence[str], growth: int) -> list[str]:
        """Each name demangled; "" for one that is refused, and for all if the process cannot be started.

        growth: a demangled name may be so many times as long as the name.
        """
        with self._lock:
            starts = range(0, len(names), _NAMES_PER_REQUEST)
            requests = (names[start : start + _NAMES_PER_REQUEST] for start in starts)
            return [text for request in requests for text in self._of_request(request, growth)]

    def close(self) -> None:
        """Ends the process. The next request starts another."""
        process, self._process = self._process, None
        if process is not None and self._owner == os.getpid():
            with contextlib.suppress(BrokenPipeError), process:
                process.kill()

    def _of_request(self, names: Sequence[str], growth: int) -> list[str]:
        """Sends the names one by one if the process does not reply, or if it took a name with a NUL for two."""
        texts = self._answered([str(growth), *names])
        if len(texts) == len(names):
            return texts
        if len(names) == 1 or not (self._process or self._starts_left):
            return [""] * len(names)
        return [text for name in names for text in self._of_request([name], growth)]

    def _answered(self, request: Sequence[str]) -> list[str]:
        """The reply; [] if there is none."""
        try:
            payload = message(request)
        except UnicodeEncodeError:
            return []
        try:
            process = self._started()
            if process is None:
                return []
            assert process.stdin is not None and process.stdout is not None
            send(process.stdin, payload)
            return receive(process.stdout)
        except (OSError, EOFError):
            self.close()
            return []
        except BaseException:  # Ctrl-C: the next request must not read this one's reply
            self.close()
            raise

    def _started(self) -> subprocess.Popen[bytes] | None:
        """The running process; None after _STARTS_MAX. Raises OSError if it cannot be started."""
        if self._process is not None and self._owner == os.getpid():
            return self._process
        if not self._starts_left:
            return None
        self._starts_left -= 1
        self._owner = os.getpid()
        # -P: import nothing from the working directory. Its own session: Ctrl-C must not end it, since the report
        # comes after. It ends with its standard input.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "memleak_android.host.symbols.demangling_limits"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process


MAX_MANGLED_LENGTH = 16_384
# Of 1,118,765 names in 3,537 ELF files the one that grows most becomes 32 times as long.
MAX_GROWTH = 128
# So many names are worth the start of the process (15 ms), which demangles any name.
_MANY_NAMES = 1000
# LLVM's demangler recurses without a limit: the nesting of a longer name might exceed a thread's stack.
_MAX_LENGTH_HERE = 1024
_SCHEMES = ("_Z", "_R", "__Z")
# References repeat another part of the name; Rust's G stands for many lifetimes. Only a T repeats a list.
_ITANIUM_REFERENCE = re.compile(r"[ST][0-9A-Z]*_")
_RUST_REFERENCE = re.compile(r"[BG][0-9A-Za-z]*_")

_process = DemanglingProcess()


def demangle(name: str) -> str:
    """The demangled ELF symbol name; the name itself if it is not mangled, or refused."""
    return demangle_all([name])[0]


def demangle_all(names: Sequence[str]) -> list[str]:
    """demangle() of each name, cheaper.

    Refused are names of more than MAX_MANGLED_LENGTH characters, names that would become more than MAX_GROWTH times as
    long, and names that exceed the limits of demangling_limits.py.
    """
    shown = list(names)
    mangled = [
        i for i, name in enumerate(names) if name.startswith(_SCHEMES) and len(name) <= MAX_MANGLED_LENGTH
    ]
    if len(mangled) < _MANY_NAMES:
        for i in mangled:
            if _is_harmless(names[i]):
                shown[i] = text_of_name(names[i]) or names[i]
        mangled = [i for i in mangled if not _is_harmless(names[i])]
    for i, text in zip(mangled, _process.demangle([names[i] for i in mangled], MAX_GROWTH), strict=True):
        shown[i] = text or names[i]
    return shown


def _is_harmless(name: str) -> bool:
    """Whether time and memory are linear in the name's length."""
    reference = _RUST_REFERENCE if name.startswith("_R") else _ITANIUM_REFERENCE
    return len(name) <= _MAX_LENGTH_HERE and not reference.search(name)
