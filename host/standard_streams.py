"""Opens /dev/null for closed standard streams, before an unrelated file gets descriptor 0, 1 or 2."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Opens what is closed of 0, 1 and 2 (`>&-`, a daemon), for us and our children.

    Otherwise the next opened file becomes standard output, and a command would write into the recording. Python has
    None for such a stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
