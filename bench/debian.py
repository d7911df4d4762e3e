"""Packages of a Debian suite, unpacked into a folder with all that they depend on. The system's own are not touched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_LIBRARIES = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu")
_LOADER = "ld-linux-x86-64.so.2"


def loader(root: Path) -> tuple[str, ...]:
    """The words that run a program with the libraries of `root`."""
    folders = [root / name for name in _LIBRARIES]
    first = next(folder / _LOADER for folder in folders if (folder / _LOADER).exists())
    return str(first), "--library-path", ":".join(map(str, folders))


def unpack(suite: str, packages: Sequence[str], folder: Path) -> str:
    """Downloads into `folder` and unpacks into its `root`; returns why not, or ""."""
    if os.geteuid() != 0:
        return "only root can"
    if shutil.which("apt-get") is None or not _KEYRING.exists():
        return "this is not a Debian system"
    print(f"downloading into {folder} (Debian {suite}): {' '.join(packages)}", flush=True)
    for part in ("state/lists/partial", "cache/archives/partial", "root"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={_KEYRING}] {_mirror()} {suite} main\n")
    settings = {
        "Dir::State": folder / "state",
        "Dir::Cache": folder / "cache",
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::status": "/dev/null",
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",  # the lock is beside the status file: /dev/lock-frontend, one for all suites
        "Acquire::Languages": "none",
    }
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    install = ["install", "--download-only", "--no-install-recommends", "-y", *packages]
    for command in (["update"], install):
        done = subprocess.run(
            ["apt-get", "-qq", *words, *command], check=False, capture_output=True, text=True
        )
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]
    for package in (folder / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder / "root"], check=True)
    for part in ("state", "cache"):
        shutil.rmtree(folder / part)
    return ""


def _mirror(etc: Path = Path("/etc/apt")) -> str:
    """Returns this machine's package source: the first whose address ends in /debian."""
    files = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    found = re.search(r"^(?:URIs:|deb\s).*?(\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
    return found[1] if found else ""
