"""One QEMU process: its command line, its console, its end."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from tests.support.debian_packages import Unavailable

READY = b"memleak-machine: ready"
BOOT_SECONDS = 90.0  # 3 s on an idle machine; machines are not idle
STOP_SECONDS = 5.0
POLL_SECONDS = 0.02
QEMU = "qemu-system-aarch64"


class MachineFailed(Exception):
    """The machine did not start, or does not answer; carries the end of its console."""


@dataclass(frozen=True)
class Hardware:
    """What QEMU plays. cortex-a72 has 4 KB pages only and no pointer authentication; "max" has all there is."""

    cpu: str = "cortex-a72"
    processors: int = 2
    memory_mib: int = 512


def command(name: str, image: Path, hardware: Hardware, adb_port: int, arguments: str) -> list[str | Path]:
    """QEMU's words, to be run in the machine's folder. Everything is emulated (TCG): KVM of another CPU is none."""
    if shutil.which(QEMU) is None:
        raise Unavailable(f"{QEMU} is not on this machine (apt-get install qemu-system-arm)")
    return [
        QEMU, "-name", name, "-M", "virt,gic-version=3", "-cpu", hardware.cpu, "-smp", str(hardware.processors),
        "-m", str(hardware.memory_mib), "-nodefaults", "-nographic", "-no-reboot",
        "-kernel", image, "-initrd", "initramfs",
        "-append", f"console=ttyAMA0 quiet loglevel=4 panic=-1 {arguments}",
        "-chardev", "pipe,id=console,path=console",
        "-serial", "chardev:console",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{adb_port}-:5555",
        "-device", "virtio-net-pci,netdev=net,romfile=",
    ]  # fmt: skip


def wait_until_ready(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Returns when the guest says that its adbd listens. Connecting earlier costs adb 5 s, and an "offline" entry:
    QEMU's network accepts connections before the guest answers them."""
    deadline = time.monotonic() + BOOT_SECONDS
    while READY not in console_text(folder):
        if process.poll() is not None:
            raise MachineFailed(f"QEMU ended with code {process.returncode}: {_last_words(folder)}")
        if time.monotonic() > deadline:
            raise MachineFailed(f"no machine after {BOOT_SECONDS:.0f} s: {_last_words(folder)}")
        time.sleep(POLL_SECONDS)


def prepare_console(folder: Path) -> None:
    """What QEMU's pipe device opens: the guest reads from a FIFO and writes to a file."""
    os.mkfifo(folder / "console.in")
    (folder / "console.out").touch()


def root_shell(folder: Path, words: str, timeout_s: float = 30.0) -> tuple[int, str]:
    """Runs a command on the machine's console, where a root shell waits: what adb may do changes nothing here.

    Returns its exit code and what it printed on either stream. Others may do the same: their commands wait.
    """
    begin, end = (f"memleak-machine: {what} {uuid.uuid4().hex}" for what in ("begin", "exit"))
    line = f"echo '{begin}'; ({words}) </dev/null 2>&1; printf '\\n{end} %d\\n' $?\n"
    try:
        console = os.open(folder / "console.in", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(console, line.encode())
        finally:
            os.close(console)
    except OSError as error:
        raise MachineFailed(f"the machine takes no commands on its console: {error}") from error
    answer = re.compile(rf"{begin}\n(.*)\n{end} (\d+)\n".encode(), re.DOTALL)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = answer.search(console_text(folder))
        if found:
            return int(found[2]), found[1].decode(errors="replace")
        time.sleep(POLL_SECONDS)
    raise MachineFailed(f"the console does not end `{words}`: {_last_words(folder)}")


def console_text(folder: Path) -> bytes:
    path = folder / "console.out"
    return path.read_bytes() if path.exists() else b""


def _last_words(folder: Path) -> str:
    errors = (folder / "qemu.log").read_text(errors="replace") if (folder / "qemu.log").exists() else ""
    return (errors + console_text(folder).decode(errors="replace")).strip()[
        -1000:
    ] or "nothing on its console"


def end(pid: int, word: str) -> None:
    """Ends the process if it still is the one that has `word` in its command line; returns when it is gone."""
    if not runs(pid, word):
        return
    for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        os.kill(pid, number)
        deadline = time.monotonic() + seconds
        while runs(pid, word) or holds_files(pid):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        else:
            return


def holds_files(pid: int) -> bool:
    """Whether it may still have sockets: an ending process loses its command line first, and its threads end by themselves."""
    try:
        states = [
            Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
            for thread in os.listdir(f"/proc/{pid}/task")
        ]
    except OSError:
        return Path(f"/proc/{pid}").exists()
    return any(state not in "ZX" for state in states)


def runs(pid: int, word: str) -> bool:
    """Whether the process is there, no zombie, and has `word` in its command line."""
    with contextlib.suppress(ChildProcessError):  # it may be another's child
        os.waitpid(pid, os.WNOHANG)
    try:
        return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
