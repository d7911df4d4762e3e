"""Where the program begins. A Ctrl-C while it is still being read ends it without a word, as it does any program."""

import signal

_of_python = signal.signal(signal.SIGINT, signal.SIG_DFL)

from memleak_android.host import standard_streams

standard_streams.open_missing()  # before anything opens a file

from memleak_android.host.cli import main  # which takes half a second

signal.signal(signal.SIGINT, _of_python)

if __name__ == "__main__":
    main()
