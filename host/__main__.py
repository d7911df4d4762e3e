"""The entry point. Ctrl-C during the imports ends the program silently."""

import signal

_python_handler = signal.signal(signal.SIGINT, signal.SIG_DFL)

from memleak_android.host import standard_streams

standard_streams.open_missing()  # before anything opens a file

from memleak_android.host.cli import main  # takes half a second

signal.signal(signal.SIGINT, _python_handler)

if __name__ == "__main__":
    main()
