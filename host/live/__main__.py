"""The drawing process: `python -m memleak_android.host.live DESCRIPTOR`, started by the session that owns the socket.

It restores the terminal and exits when the session's end of the socket closes, for whatever reason.
"""

import signal
import socket
import sys
import threading
from contextlib import suppress

import msgspec

from memleak_android.host.live.app import LiveApp
from memleak_android.host.live.messages import Close, ViewRequest, encode, session_messages


def main(descriptor: int) -> int:
    stream = socket.socket(fileno=descriptor)
    for number in (signal.SIGINT, signal.SIGHUP):  # the session gets them too, and we exit with it
        signal.signal(number, signal.SIG_IGN)

    def ask(wanted: ViewRequest) -> None:
        with suppress(OSError):  # it is ending
            stream.sendall(encode(wanted))

    def listen() -> None:
        with suppress(OSError, msgspec.DecodeError, RuntimeError):  # RuntimeError: the app is gone
            for message in session_messages(stream):
                app.call_from_thread(app.take, message)
        with suppress(RuntimeError):
            app.call_from_thread(app.take, Close())

    app = LiveApp(ask, threading.Thread(target=listen, daemon=True).start)
    app.run()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
