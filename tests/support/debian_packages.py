"""Files of Debian packages of any architecture: fetched once by apt, unpacked below build/, nothing installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "debian"


def packages(architecture: str, *names: str) -> Path:
    """The folder that holds the packages' files. Skips the test, with the reason, when they cannot be had."""
    root = FOLDER / architecture
    missing = [name for name in names if not (root / f".{name}").exists()]
    if missing:
        _fetch(root, architecture, missing)
    return root


def _fetch(root: Path, architecture: str, names: list[str]) -> None:
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on this machine: no Debian packages for {architecture}")
    state = FOLDER / f"apt-{architecture}"
    archives = state / "archives"
    for folder in (root, archives, state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not _deb(archives, name):
            if not any((state / "lists").glob("*_Packages*")):
                _apt(state, archives, architecture, "update")
            _apt(state, archives, architecture, "download", name)
        deb = _deb(archives, name)
        if deb is None:
            pytest.skip(f"{name}:{architecture} cannot be fetched by apt-get download (offline?)")
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
        (root / f".{name}").touch()


def _deb(archives: Path, name: str) -> Path | None:
    return next(iter(archives.glob(f"{name}_*.deb")), None)


def _apt(state: Path, archives: Path, architecture: str, *words: str) -> None:
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "Dir::State::lists": f"{state}/lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": f"{state}/cache",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "true",
    }
    if os.geteuid() == 0:  # root's apt would fetch as _apt, who may not write below our folder
        settings["APT::Sandbox::User"] = "root"
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(
        ["apt-get", *options, "-qq", *words], cwd=archives, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
