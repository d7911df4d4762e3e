"""The entry point. Ctrl-C during the imports ends the program silently."""

import os
import signal
import sys


def _open_missing_streams() -> None:
    """Opens /dev/null for what is closed of 0, 1 and 2 (`>&-`, a daemon), for us and our children.

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


def _prefer_installed_packages() -> None:
    """Moves the folders of PYTHONPATH behind ours: they are the target's, with its versions of numpy or msgspec."""
    given = {
        os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder
    }
    theirs = {folder for folder in given if not os.path.isdir(os.path.join(folder, "memleak_android"))}
    sys.path.sort(key=lambda folder: folder in theirs)


def main() -> None:
    """Imports the command line here: a worker process imports this file, too, and needs none of it."""
    python_handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    _open_missing_streams()
    _prefer_installed_packages()
    from memleak_android.host import cli  # takes half a second

    signal.signal(signal.SIGINT, python_handler)
    cli.main()


if __name__ == "__main__":
    main()
