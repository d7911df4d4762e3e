"""The start of a machine: its image, its QEMU, its adb server, and nothing left of them if one of them fails."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.emulator.phone import qemu
from tests.emulator.phone.image import write_image
from tests.emulator.phone.kernels import LINES, kernel
from tests.emulator.phone.machine import RUN, Machine, Options, adb_program
from tests.emulator.phone.reservation import reserved
from tests.emulator.phone.surface import write_symbols
from tests.support.debian_packages import Unavailable

# Not 5554…5584, where every adb server looks for emulators by itself: tests of others would see this one.
NUMBERS = range(5600, 5700, 10)


@contextmanager
def booted(options: Options | None = None) -> Iterator[Machine]:
    """A machine for a fixture; skips, with the reason, where it cannot be had."""
    try:
        machine = start(options or Options())
    except Unavailable as error:
        pytest.skip(str(error))
    try:
        yield machine
    finally:
        machine.stop()


def start(options: Options, *, number: int = 0, outlives_us: bool = False) -> Machine:
    """Starts a machine and returns when adb shell answers. Raises Unavailable or MachineFailed, and leaves nothing.

    With number 0 it takes the first free one. It ends with this process unless `outlives_us`.
    """
    if options.kernel not in LINES:
        raise Unavailable(f"no kernel {options.kernel}; there are {', '.join(LINES)}")
    adb_program()
    chosen = kernel(options.kernel)
    number = reserved(RUN, [number] if number else NUMBERS)
    folder = RUN / str(number)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        qemu.prepare_console(folder)
        with (folder / "initramfs").open("wb") as stream:
            write_image(stream, chosen)
        write_symbols(folder / "symbols")
        began = time.monotonic()
        argv = qemu.command(
            f"memleak-emulator-{number}", chosen.image, options.hardware, number + 1, options.arguments
        )
        _spawn(processes, argv, folder, "qemu.log", outlives_us)
        server: list[str | Path] = [adb_program(), "-P", str(number + 2), "nodaemon", "server"]
        _spawn(processes, server, folder, "adb.log", outlives_us)
        qemu.wait_until_ready(folder, processes[0])
        (folder / "initramfs").unlink()
        machine = Machine(number, processes[0].pid, processes[1].pid, 0.0, options)
        machine.announce()
        machine.wait_for_shell()
        machine = replace(machine, boot_s=time.monotonic() - began)
        (folder / "machine.json").write_text(json.dumps(asdict(machine)))
        (folder / "starter").unlink()
    except BaseException:  # Ctrl-C too: nothing stays
        for process in processes:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return machine


def _spawn(
    processes: list[subprocess.Popen[bytes]],
    argv: list[str | Path],
    folder: Path,
    log: str,
    outlives_us: bool,
) -> None:
    # A killed test run takes its machine along (prctl(2), PR_SET_PDEATHSIG).
    # We may have ended before it asked for that.
    alive = ("sh", "-c", f'[ "$PPID" = {os.getpid()} ] && exec "$@"', "sh")
    words = list(argv) if outlives_us else ["setpriv", "--pdeathsig", "KILL", *alive, *argv]
    environment = dict(os.environ, HOME=str(folder))  # adb writes its key there
    # Ctrl-C in here would leave an unrecorded process. The child keeps the mask, and needs no SIGINT.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with (folder / log).open("wb") as output:
            processes.append(
                subprocess.Popen(
                    words, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True, env=environment,
                )
            )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
