"""Reads the configuration, then runs the session; an error becomes an ERROR block."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from memleak_android.host.errors import MemleakError, TargetError, TracerError
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.bcc.config import Configuration, parse
from memleak_android.host.tracers.bcc.held_command import HeldCommand
from memleak_android.host.tracers.bcc.session import Session
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import END, Block, BlockKind, Reason, encode_block


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the host decides
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libbcc prints must not come between blocks
    try:
        _run(output)
    except MemleakError as error:
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        output.write(encode_block(payloads.encode_error(_reason(error), text)))
        end = np.zeros(1, END)
        end["reason"] = _reason(error)
        output.write(encode_block(Block(BlockKind.END, end.tobytes())))
        output.flush()
        return 2
    return 0


def _run(output: BinaryIO) -> None:
    configuration: Configuration = parse(_lines(0))
    command = HeldCommand(configuration) if configuration.command else None
    try:
        Session(debian_module.load(), configuration, command, output).run(0)
    finally:
        if command:
            command.end()


def _lines(descriptor: int) -> Iterator[str]:
    """Reads byte by byte: the session reads the input after `start`."""
    line = bytearray()
    while byte := os.read(descriptor, 1):
        line += byte
        if byte == b"\n":
            yield line.decode("ascii", "replace")
            line.clear()


def _reason(error: MemleakError) -> Reason:
    if isinstance(error, TargetError):
        return Reason.TARGET_ERROR
    return Reason.TRACER_ERROR if isinstance(error, TracerError) else Reason.USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
