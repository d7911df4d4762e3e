"""Files of npm packages: fetched once by `npm pack`, unpacked below build/, nothing installed or run."""

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "build" / "npm"


def native_modules(*packages: str) -> list[Path]:
    """The .node files (ELF, for Android) of packages given as name@version."""
    return [path for package in packages for path in sorted(folder(package).rglob("*.node"))]


def folder(package: str) -> Path:
    """The unpacked package, given as name@version. Skips the test when it cannot be had."""
    unpacked = FOLDER / package.replace("/", "_")
    if not unpacked.is_dir():
        _fetch(package, unpacked)
    return unpacked


def _fetch(package: str, folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not on this machine (apt-get install npm)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    archive = FOLDER / (done.stdout.split() or [""])[-1]
    if done.returncode or not archive.is_file():
        pytest.skip(f"{package} cannot be fetched by npm pack (offline?)")
    with tarfile.open(archive) as bundle:
        # Python 3.11 has filters from 3.11.4 on; Debian 12's is older.
        bundle.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
