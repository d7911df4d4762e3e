"""A machine that answers adb: a QEMU and an adb server of its own, started, found again and stopped by their ports.

Machine N has four numbers in a row: N in its serial "emulator-N", as Google's emulator has it; N+1 where its adbd
listens; N+2 where its adb server listens.
"""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.emulator.phone import qemu
from tests.emulator.phone.compiler import BUILD
from tests.emulator.phone.kernels import DEFAULT
from tests.emulator.phone.qemu import Hardware, MachineFailed
from tests.emulator.phone.reservation import is_free
from tests.emulator.phone.selinux import load_command
from tests.support.debian_packages import Unavailable

RUN = BUILD / "run"
ADB_SECONDS = 30.0


@dataclass(frozen=True)
class Options:
    """Description of a machine.

    kernel: a line of kernels.LINES. build: "userdebug" (su as AOSP has it), "user" (a stock phone). api_level: what
    properties say; from 30 on apps load startup agents.
    """

    kernel: str = DEFAULT
    build: str = "userdebug"
    api_level: int = 29

    @property
    def arguments(self) -> str:
        """Words of the kernel's command line."""
        own = f"memleak.build={self.build} memleak.sdk={self.api_level}"
        return f"{own} security=selinux selinux=1 enforcing=1"

    @property
    def hardware(self) -> Hardware:
        return Hardware(cpu="max,pauth-impdef=on") if self.kernel.endswith("16k") else Hardware()


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
        """Returns the environment in which a program sees this machine and no other."""
        return {"ANDROID_ADB_SERVER_PORT": str(self.server_port), "ANDROID_SERIAL": self.serial}

    def adb(self, *words: str | Path, timeout_s: float = ADB_SECONDS) -> subprocess.CompletedProcess[bytes]:
        """Runs the adb client; for what the shell returned see the code, stdout and stderr."""
        argv = [adb_program(), "-P", str(self.server_port), "-s", self.serial, *words]
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

    def announce(self) -> None:
        """Announces an emulator to the adb server, as emulators do at their start (packages/modules/adb, SERVICES.TXT)."""
        deadline = time.monotonic() + ADB_SECONDS
        message = f"host:emulator:{self.number + 1}"
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.server_port), timeout=ADB_SECONDS) as server:
                    server.sendall(f"{len(message):04x}{message}".encode())
                    server.recv(4)
                    return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise MachineFailed(
                        f"no answer of the adb server on port {self.server_port}: {error}"
                    ) from error
                time.sleep(qemu.POLL_SECONDS)

    def wait_for_shell(self) -> None:
        """Returns when adb shell answers."""
        deadline = time.monotonic() + ADB_SECONDS
        said = ""
        while time.monotonic() < deadline:
            code, output, said = self.shell("echo here")
            if code == 0 and output == "here\n":
                return
            time.sleep(qemu.POLL_SECONDS)
        raise MachineFailed(f"adb shell does not answer on {self.serial}: {said.strip()}")

    def unplug(self) -> None:
        """Pulls the cable: every stream ends, and adb has no such device until `plug_in`."""
        self.root_shell("kill -9 $(pidof adbd)")
        deadline = time.monotonic() + ADB_SECONDS
        while re.search(rf"^{self.serial}\s+device$", self.adb("devices").stdout.decode(), re.MULTILINE):
            if time.monotonic() > deadline:
                raise MachineFailed(f"{self.serial} is still there")

    def plug_in(self) -> None:
        """Returns when adb shell answers again."""
        self.root_shell("/system/bin/start_adbd")
        self.announce()
        self.wait_for_shell()

    @contextlib.contextmanager
    def refusing(self, what: str) -> Iterator[None]:
        """SELinux refuses it, to root too, as a phone's policy does (avc: denied { prog_load }). what: of selinux.REFUSABLE."""
        self._load_policy(f"refuses_{what}")
        try:
            yield
        finally:
            self._load_policy("permits")

    def _load_policy(self, name: str) -> None:
        code, said = self.root_shell(load_command(name))
        if code:
            raise MachineFailed(f"SELinux policy {name} on {self.serial}: {said}")

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

    def code_of(self, pid: str | int, name: str) -> str:
        """A digest of a process's code in memory that comes from the file whose path ends so."""
        lines = self.root_shell(f"cat /proc/{pid}/maps")[1].splitlines()
        line = next(one for one in lines if " r-xp " in one and one.endswith(name))
        low, high = (int(word, 16) // 4096 for word in line.split()[0].split("-"))
        words = f"dd if=/proc/{pid}/mem bs=4096 skip={low} count={high - low} 2>/dev/null | sha256sum"
        return self.root_shell(words)[1].split()[0]

    @contextlib.contextmanager
    def holding(self, folder: str, *files: Path) -> Iterator[str]:
        """A folder of programs on the machine, which goes with the block."""
        self.shell(f"rm -rf {folder}; mkdir {folder}")
        for file in files:
            done = self.adb("push", file, f"{folder}/{file.name}")
            if done.returncode:
                raise MachineFailed(done.stderr.decode(errors="replace"))
        self.shell(f"chmod 755 {folder}/*")
        yield folder
        self.shell(f"rm -rf {folder}")

    def runs(self) -> bool:
        """Whether there is anything left to stop: of a machine that was powered off its adb server is."""
        return qemu.runs(self.qemu_pid, f"memleak-{self.serial}") or qemu.runs(
            self.server_pid, str(self.server_port)
        )

    def stop(self) -> None:
        """Ends both processes and removes the machine's folder; a second call does nothing."""
        qemu.end(self.server_pid, str(self.server_port))
        if not is_free(self.server_port):  # a client that missed its server has started another
            words = [adb_program(), "-P", str(self.server_port), "kill-server"]
            subprocess.run(words, check=False, capture_output=True)  # and where none has, says so
        qemu.end(self.qemu_pid, f"memleak-{self.serial}")
        shutil.rmtree(self.folder, ignore_errors=True)


def running() -> list[Machine]:
    """All running machines."""
    found = []
    for path in sorted(RUN.glob("*/machine.json")):
        fields = json.loads(path.read_text())
        machine = Machine(**{**fields, "options": Options(**fields["options"])})
        if machine.runs():
            found.append(machine)
    return found


def adb_program() -> str:
    """The adb client. Raises Unavailable."""
    found = shutil.which("adb")
    if found is None:
        raise Unavailable("adb is not on this machine (apt-get install adb)")
    return found
