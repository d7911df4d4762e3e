"""Numbers of machines: taken by renaming a folder, which only one process can."""

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.emulator.phone.qemu import MachineFailed, runs


def reserved(run: Path, numbers: Sequence[int]) -> int:
    """The first free number; its folder in `run` is there afterwards. Raises MachineFailed.

    A folder is left over when neither the process that started there nor the QEMU that it started is there any more.
    """
    run.mkdir(parents=True, exist_ok=True)
    claim = Path(tempfile.mkdtemp(dir=run))
    (claim / "starter").write_text(str(os.getpid()))
    for number in numbers:
        folder = run / str(number)
        if folder.exists() and _is_left_over(folder):
            shutil.rmtree(folder, ignore_errors=True)
        if not is_free(number + 1) or not is_free(number + 2):
            continue
        with contextlib.suppress(OSError):  # of two at the same time one finds the folder in its way
            claim.rename(folder)
            return number
    shutil.rmtree(claim)
    raise MachineFailed(f"all of {', '.join(map(str, numbers))} are taken: python -m tests.emulator status")


def _is_left_over(folder: Path) -> bool:
    starter, machine = folder / "starter", folder / "machine.json"
    if starter.exists():
        return not Path(f"/proc/{starter.read_text()}").exists()
    return not machine.exists() or not runs(
        json.loads(machine.read_text())["qemu_pid"], f"memleak-emulator-{folder.name}"
    )


def is_free(port: int) -> bool:
    """Whether the port of this machine's loopback is free."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
