"""Reads the request and runs the session; an error becomes an ERROR block."""

import json
import os
import signal
import subprocess
import sys

import numpy as np

from memleak_android.host.errors import MemleakError, TargetError
from memleak_android.host.tracers.bcc import debian_module
from memleak_android.host.tracers.bcc.session import Session
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import END, Block, BlockKind, Reason, encode_block


def main() -> int:
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libbcc prints must not come between blocks
    request = json.loads(_first_line(0))
    # The command is forked before this process loads more libraries.
    pid, gate = _hold(request["command"]) if request["command"] else (request["pid"], -1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the host decides
    try:
        Session(debian_module.load(), request, pid, gate, output).run(0)
    except MemleakError as error:
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        end = np.zeros(1, END)
        end["reason"] = reason = (
            Reason.TARGET_ERROR if isinstance(error, TargetError) else Reason.TRACER_ERROR
        )
        output.write(encode_block(payloads.encode_error(reason, text)))
        output.write(encode_block(Block(BlockKind.END, end.tobytes())))
        output.flush()
        return 2
    return 0


def _first_line(descriptor: int) -> bytes:
    """Reads byte by byte: the session reads what follows."""
    line = bytearray()
    while not line.endswith(b"\n"):
        line += os.read(descriptor, 1) or b"\n"
    return bytes(line)


def _hold(command: list[str]) -> tuple[int, int]:
    """Starts a shell that calls exec on a line from the second descriptor, and exits when that is closed. Returns its pid.

    The user's standard streams are descriptors 3 to 5 (LocalChannel).
    """
    opened, gate = os.pipe()
    script = f'read -r _ <&{opened} && exec "$@" {opened}<&-'
    argv = ["sh", "-c", script, "sh", *command]
    child = subprocess.Popen(argv, stdin=3, stdout=4, stderr=5, pass_fds=[opened])
    os.close(opened)
    return child.pid, gate


if __name__ == "__main__":
    sys.exit(main())
