"""Standard streams that who started us has closed (`>&-`, a daemon): /dev/null, before another file takes the number."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Opens what is closed of 0, 1 and 2, for us and for who inherits them.

    Else the next file that is opened is standard output, to a command that is started too: its output would go into
    a recording. Python leaves None in the place of such a stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
