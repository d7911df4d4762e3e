"""Files of Debian packages of any suite and architecture: fetched and verified by apt, unpacked below build/debian.

Nothing is installed: apt runs with lists and a cache of its own (apt.conf(5), Dir::State, Dir::Cache), the mirror and
the keyring are those that the machine's own apt is configured with.
"""

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_SECONDS = 300.0


class Unavailable(Exception):
    """A package, or another part of an emulated machine, cannot be had here; the message says which and why."""


@dataclass(frozen=True)
class Suite:
    """One Debian release for one architecture, e.g. Suite("trixie", "arm64")."""

    name: str
    architecture: str

    @property
    def _state(self) -> Path:
        return FOLDER / "apt" / f"{self.name}-{self.architecture}"

    def unpacked(self, *packages: str) -> Path:
        """A folder with the files of the packages; fetches what is not there yet. Raises Unavailable."""
        root = FOLDER / f"{self.name}-{self.architecture}"
        if not all((root / f".{package}").exists() for package in packages):
            root.mkdir(parents=True, exist_ok=True)
            with _alone():
                for package in packages:
                    self._unpack(package, root)
        return root

    def depends(self, package: str) -> str:
        """The first package that a meta package depends on, e.g. the kernel of today's linux-image-arm64."""
        stamp = self._state / f"{package}.depends"
        if not stamp.exists():
            with _alone():
                self._have_lists()
                found = re.search(r"Depends: ([^\s:]+)", self._apt("apt-cache", "depends", package))
            if found is None:
                raise Unavailable(f"Debian {self.name} has no {package} for {self.architecture}")
            stamp.write_text(found[1])
        return stamp.read_text()

    def _unpack(self, package: str, root: Path) -> None:
        stamp = root / f".{package}"
        if not stamp.exists():
            subprocess.run(["dpkg-deb", "-x", self._fetched(package), root], check=True)
            stamp.touch()

    def _fetched(self, package: str) -> Path:
        archives = self._state / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        # A mirror keeps one version of each package: lists older than it name files that are gone.
        for lists_may_be_old in (True, False):
            if not any(archives.glob(f"{package}_*.deb")):
                self._have_lists(fresh=not lists_may_be_old)
                self._apt("apt-get", "-qq", "download", package)
        found = sorted(archives.glob(f"{package}_*.deb"))
        if not found:
            raise Unavailable(
                f"{package}:{self.architecture} of Debian {self.name} cannot be fetched (offline?)"
            )
        return found[-1]

    def _have_lists(self, *, fresh: bool = False) -> None:
        lists = self._state / "lists"
        if fresh or not any(lists.glob("*_Packages*")):
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            self._apt("apt-get", "-qq", "update")

    def _apt(self, program: str, *words: str) -> str:
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise Unavailable(f"{tool} is not on this machine: Debian packages cannot be had")
        archives = self._state / "archives"
        archives.mkdir(parents=True, exist_ok=True)
        settings = [word for setting in self._settings() for word in ("-o", setting)]
        done = subprocess.run(
            [program, *settings, *words], cwd=archives, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, check=False, timeout=APT_SECONDS,
        )  # fmt: skip
        return done.stdout

    def _settings(self) -> list[str]:
        state = self._state
        (state / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        sources = state / "sources.list"
        sources.write_text(f"deb [signed-by={KEYRING}] {_mirror()} {self.name} main\n")
        settings = {
            "APT::Architecture": self.architecture,
            "APT::Architectures": self.architecture,
            "Acquire::Languages": "none",
            "Debug::NoLocking": "true",
            "Dir::Cache": state / "cache",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": state / "lists",
            "Dir::State::status": "/dev/null",
        }
        if os.geteuid() == 0:  # root's apt would fetch as _apt, who may not write below our folder
            settings["APT::Sandbox::User"] = "root"
        return [f"{name}={value}" for name, value in settings.items()]


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One process at a time: others that start a machine wait for its packages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mirror() -> str:
    """The address of the Debian archive that the machine's apt uses. Raises Unavailable where it uses none."""
    if shutil.which("apt-get") is None:
        raise Unavailable("apt-get is not on this machine")
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    mirrors = [uri for uri in targets.stdout.split() if uri.rstrip("/").endswith("/debian")]
    if not mirrors:
        raise Unavailable("apt knows no mirror of Debian here: add one to its sources")
    return mirrors[0]


def unpacked_from_first(suites: tuple[str, ...], architecture: str, *packages: str) -> Path:
    """As Suite.unpacked, from the first of the suites that has all: a mirror in the middle of its sync has one in halves."""
    for name in suites[:-1]:
        with contextlib.suppress(Unavailable):
            return Suite(name, architecture).unpacked(*packages)
    return Suite(suites[-1], architecture).unpacked(*packages)


def packages(architecture: str, *names: str) -> Path:
    """A folder with the files of packages of this machine's own suite. Skips the test where they cannot be had."""
    try:
        return Suite(platform.freedesktop_os_release()["VERSION_CODENAME"], architecture).unpacked(*names)
    except Unavailable as error:
        pytest.skip(str(error))
