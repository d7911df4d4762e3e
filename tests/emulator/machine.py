"""A machine that answers adb: a QEMU and an adb server of its own, started, found again and stopped by their ports.

Machine N has four numbers in a row: N in its serial "emulator-N", as Google's emulator has it; N+1 where its adbd
listens; N+2 where its adb server listens.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.emulator import qemu
from tests.emulator.debian import BUILD, Unavailable
from tests.emulator.image import write_image
from tests.emulator.kernels import DEFAULT, LINES, kernel
from tests.emulator.qemu import Hardware, MachineFailed
from tests.emulator.reservation import reserved
from tests.emulator.selinux import load_command
from tests.emulator.surface import write_symbols

RUN = BUILD / "run"
ROOT_FOLDER = BUILD.parents[1]
# Not 5554…5584, where every adb server looks for emulators by itself: tests of others would see this one.
NUMBERS = range(5600, 5700, 10)
ADB_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """What a machine is.

    kernel: a line of kernels.LINES. build: "userdebug" (su as AOSP has it), "rooted" (a user build whose su takes -c),
    "user" (a stock phone). adb_user: as whom adbd runs, "shell" as on phones, "root" as after adb root. selinux: what
    getenforce says; without a policy nothing is refused, see Machine.refusing_bpf.
    """

    kernel: str = DEFAULT
    build: str = "userdebug"
    adb_user: str = "shell"
    selinux: str = "enforcing"

    @property
    def arguments(self) -> str:
        """Words of the kernel's command line."""
        enforcing = self.selinux == "enforcing"
        return f"memleak.build={self.build} memleak.adb={self.adb_user} security=selinux selinux=1 enforcing={enforcing:d}"

    @property
    def adb_uid(self) -> int:
        return 0 if self.adb_user == "root" else 2000

    @property
    def hardware(self) -> Hardware:
        return Hardware(cpu="max") if self.kernel.endswith("16k") else Hardware()


@dataclass(frozen=True)
class Machine:
    """A running machine. `boot_s` is the time from QEMU's start to the first answer of adb shell."""

    number: int
    qemu_pid: int
    server_pid: int
    boot_s: float
    options: Options

    @property
    def serial(self) -> str:
        return f"emulator-{self.number}"

    @property
    def server_port(self) -> int:
        return self.number + 2

    @property
    def folder(self) -> Path:
        return RUN / str(self.number)

    @property
    def symbols(self) -> Path:
        """A folder with the apps' libraries as they were before they were stripped, by ABI."""
        return self.folder / "symbols"

    @property
    def environment(self) -> dict[str, str]:
        """What a program has to have in its environment to see this machine, and this one only."""
        return {"ANDROID_ADB_SERVER_PORT": str(self.server_port), "ANDROID_SERIAL": self.serial}

    def adb(self, *words: str | Path, timeout_s: float = ADB_SECONDS) -> subprocess.CompletedProcess[bytes]:
        """Runs the adb client; for what the shell returned see the code, stdout and stderr."""
        argv = [_adb(), "-P", str(self.server_port), "-s", self.serial, *words]
        return subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=timeout_s
        )

    def shell(self, command: str, timeout_s: float = ADB_SECONDS) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `adb shell COMMAND`."""
        done = self.adb("shell", command, timeout_s=timeout_s)
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    def root_shell(self, command: str, timeout_s: float = ADB_SECONDS) -> tuple[int, str]:
        """Exit code and output of a command run as root on the console, whatever adb may do."""
        return qemu.root_shell(self.folder, command, timeout_s)

    def unplug(self) -> None:
        """What pulling the cable does: every stream ends, and adb has no such device until `plug_in`."""
        self.root_shell("kill -9 $(pidof adbd)")
        deadline = time.monotonic() + ADB_SECONDS
        while re.search(rf"^{self.serial}\s+device$", self.adb("devices").stdout.decode(), re.MULTILINE):
            if time.monotonic() > deadline:
                raise MachineFailed(f"{self.serial} is still there")

    def plug_in(self) -> None:
        """Returns when adb shell answers again."""
        self.root_shell(f"/system/bin/start_adbd {self.options.adb_uid}")
        _announce(self.number)
        _wait_for_shell(self)

    @contextlib.contextmanager
    def refusing_bpf(self) -> Iterator[None]:
        """SELinux refuses to load BPF programs, to root too, as a phone's policy does (avc: denied { prog_load })."""
        self._load_policy("refuses_bpf")
        try:
            yield
        finally:
            self._load_policy("permits")

    def _load_policy(self, name: str) -> None:
        code, said = self.root_shell(load_command(name))
        if code or not (self.options.selinux == "enforcing" or name == "permits"):
            raise MachineFailed(f"SELinux policy {name} on {self.serial} ({self.options.selinux}): {said}")

    def wait_for_process(self, name: str) -> str:
        """The pid of the process of that name, as soon as there is one: apps start after `am start` has ended."""
        deadline = time.monotonic() + ADB_SECONDS
        while time.monotonic() < deadline:
            found = self.shell(f"pidof '{name}'")[1].split()
            if found:
                return found[0]
        raise MachineFailed(f"no process {name} on {self.serial}")

    def wait_for_mapping(self, pid: str, name: str) -> str:
        """/proc/PID/maps, as soon as a file of that name is in it."""
        deadline = time.monotonic() + ADB_SECONDS
        maps = ""
        while name not in maps:
            if time.monotonic() > deadline:
                raise MachineFailed(f"process {pid} on {self.serial} does not map {name}")
            maps = self.root_shell(f"cat /proc/{pid}/maps")[1]
        return maps

    def runs(self) -> bool:
        return qemu.runs(self.qemu_pid, f"memleak-{self.serial}")

    def stop(self) -> None:
        """Ends both processes and removes the machine's folder; a second call does nothing."""
        qemu.end(self.server_pid, str(self.server_port))
        qemu.end(self.qemu_pid, f"memleak-{self.serial}")
        shutil.rmtree(self.folder, ignore_errors=True)


def start(options: Options, *, number: int = 0, outlives_us: bool = False) -> Machine:
    """Starts a machine and returns when adb shell answers. Raises Unavailable or MachineFailed, and leaves nothing.

    With number 0 it takes the first free one. It ends with this process unless `outlives_us`.
    """
    if options.kernel not in LINES:
        raise Unavailable(f"no kernel {options.kernel}; there are {', '.join(LINES)}")
    _adb()
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
        server: list[str | Path] = [_adb(), "-P", str(number + 2), "nodaemon", "server"]
        _spawn(processes, server, folder, "adb.log", outlives_us)
        qemu.wait_until_ready(folder, processes[0])
        (folder / "initramfs").unlink()
        _announce(number)
        machine = Machine(number, processes[0].pid, processes[1].pid, 0.0, options)
        _wait_for_shell(machine)
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


def running() -> list[Machine]:
    """The machines that run, whoever started them."""
    found = []
    for path in sorted(RUN.glob("*/machine.json")):
        fields = json.loads(path.read_text())
        machine = Machine(**{**fields, "options": Options(**fields["options"])})
        if machine.runs():
            found.append(machine)
    return found


def _adb() -> str:
    found = shutil.which("adb")
    if found is None:
        raise Unavailable("adb is not on this machine (apt-get install adb)")
    return found


def _spawn(
    processes: list[subprocess.Popen[bytes]],
    argv: list[str | Path],
    folder: Path,
    log: str,
    outlives_us: bool,
) -> None:
    # A killed test run takes its machine along (prctl(2), PR_SET_PDEATHSIG).
    words = list(argv) if outlives_us else ["setpriv", "--pdeathsig", "KILL", *argv]
    environment = dict(os.environ, HOME=str(folder))  # adb writes its key there
    # Ctrl-C in here would leave a process that nobody has noted. The child keeps the mask, and needs no SIGINT.
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


def _announce(number: int) -> None:
    """Tells the adb server of an emulator, as emulators do when they start (packages/modules/adb, SERVICES.TXT)."""
    deadline = time.monotonic() + ADB_SECONDS
    message = f"host:emulator:{number + 1}"
    while True:
        try:
            with socket.create_connection(("127.0.0.1", number + 2), timeout=ADB_SECONDS) as server:
                server.sendall(f"{len(message):04x}{message}".encode())
                server.recv(4)
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise MachineFailed(
                    f"the adb server on port {number + 2} does not answer: {error}"
                ) from error
            time.sleep(qemu.POLL_SECONDS)


def _wait_for_shell(machine: Machine) -> None:
    deadline = time.monotonic() + ADB_SECONDS
    said = ""
    while time.monotonic() < deadline:
        code, output, said = machine.shell("echo here")
        if code == 0 and output == "here\n":
            return
        time.sleep(qemu.POLL_SECONDS)
    raise MachineFailed(f"adb shell does not answer on {machine.serial}: {said.strip()}")
