"""Temporary changes on a device, undone by a keeper process there.

The keeper is a shell that makes the change, waits for the end of its input, and undoes the change. adbd closes that input when
the connection ends for any reason: close(), an error, Ctrl-C, SIGKILL of this program, an unplugged cable, a restart of
adbd (adbd also sends SIGHUP, which the keeper ignores). Only a device that loses its power undoes nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.target import AppUser, Target

_READY_S = 15.0
_UNDONE_S = 5.0
_SAID_BYTES_MAX = 1 << 16
_READY = re.compile(rb"(?:^|\n)ready ([^\r\n]*)\r?\n")


# Lines for `do`. They make a folder of ours in the current one and set `name` to its name. `word` holds 16 random
# hexadecimal digits, also among the keeper's arguments: its command line identifies it (by tr: toybox's grep stops
# at a NUL). The folder's name contains its process id. Folders whose keeper has ended are removed. Other users may
# pass through the folder (the app opens the shim in it) but not list it.
OWN_PREFIX = "memleak-android"
LIVES = """
lives() { { tr '\\0' ' ' <"/proc/$1/cmdline" | grep -q "$2"; } 2>/dev/null; } # a keeper, by its pid and its word
"""
OWN_FOLDER = f"""{LIVES}
for old in {OWN_PREFIX}-*-*; do
  [ -d "$old" ] || continue
  pid=${{old#{OWN_PREFIX}-}}; other=${{pid#*-}}; pid=${{pid%%-*}}
  lives "$pid" "$other" || rm -rf "$old"
done
name={OWN_PREFIX}-$$-$word
mkdir -m 711 "$name" || exit 1
"""


class KeeperFailed(DeviceError):
    """reason: the last line of the failed command's output."""

    def __init__(self, target: Target, reason: str) -> None:
        super().__init__(f"{target.name}: {reason}", "see `memleak-android doctor`")
        self.reason = reason


class Keeper:
    """Makes the change in its constructor and undoes it at close(). Raises KeeperFailed.

    do: shell lines that make the change, with `words` as $1, $2 …; on failure they undo their work and exit.
    undo: the lines that undo the change.
    answer: the variable `answer` as `do` set it.
    """

    def __init__(
        self,
        target: Target,
        do: str,
        undo: str,
        words: Sequence[str],
        *,
        as_root: bool = False,
        run_as: AppUser | None = None,
    ) -> None:
        script = (
            f"trap '' HUP INT TERM PIPE\numask 022\n{do}\necho \"ready $answer\"\ncat >/dev/null\n{undo}\n"
        )
        self._channel = target.open_agent(["sh", "-c", script, "sh", *words], as_root=as_root, run_as=run_as)
        try:
            self.answer = self._await_answer(target)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Returns when the change is undone, or soon if the device no longer answers: the keeper undoes it anyway."""
        self._channel.close(_UNDONE_S, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _await_answer(self, target: Target) -> str:
        said, deadline = bytearray(), time.monotonic() + _READY_S
        while time.monotonic() < deadline and len(said) < _SAID_BYTES_MAX:
            piece = self._channel.exchange(bytearray(), 0.1)
            said += piece or b""
            if found := _READY.search(said):
                return found[1].decode("utf-8", "surrogateescape")
            if piece is None:
                raise KeeperFailed(target, self._channel.last_words() or self._channel.end_text())
        raise KeeperFailed(target, self._channel.last_words() or "it does not answer")
