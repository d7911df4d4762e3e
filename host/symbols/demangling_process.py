"""Demangles in a process with limits: a name that exceeds them ends that process, not the program."""

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from memleak_android.host.symbols.demangling_limits import message, receive, send

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
