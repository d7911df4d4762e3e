"""The CPythons of this machine, and extensions for them: compiled here, or released by others."""

import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.workloads import ROOT, built

_RELEASED = ROOT / "build" / "pypi"

_ASKED = "import sys, sysconfig, json; print(json.dumps([sys.executable, sysconfig.get_paths()['include']]))"


@functools.cache
def interpreters() -> dict[str, Path]:
    """Executables with headers → the headers: the one that runs the tests, the system's, those of the PATH and of pyenv."""
    names = [sys.executable, "/usr/bin/python3", *(f"python3.{minor}" for minor in range(9, 16))]
    pyenv = Path.home() / ".pyenv" / "versions"
    names += map(str, (path for minor in range(9, 16) for path in pyenv.glob(f"3.{minor}.*/bin/python3")))
    found = dict[str, Path]()
    for name in (path for path in map(shutil.which, names) if path):
        done = subprocess.run([name, "-c", _ASKED], capture_output=True, text=True, check=False)
        executable, include = json.loads(done.stdout) if done.returncode == 0 else ("", "/")
        if (Path(include) / "Python.h").exists() and include not in map(str, found.values()):
            found[executable] = Path(include)
    return found


def extension(source: Path, interpreter: str) -> Path:
    """The folder with the compiled extension, for PYTHONPATH."""
    if interpreter not in interpreters():
        pytest.skip(f"no headers for {interpreter}")
    include = interpreters()[interpreter]
    made = built(source, "-shared", "-fPIC", f"-I{include}", f"-DNAME={include.name}")
    library = made.with_suffix(".so")
    if not library.exists():
        shutil.copy(made, library)
    return made.parent


def released(name: str, version: str) -> Path:
    """The folder with a released package for the interpreter that runs the tests. Skips the test when it cannot be had."""
    folder = _RELEASED / f"{name}-{version}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=_made(_RELEASED)) as fetched:
            words = ["-m", "pip", "install", "-q", "--no-deps", "--target", fetched]
            done = subprocess.run(
                [sys.executable, *words, f"{name}=={version}"], capture_output=True, check=False
            )
            if done.returncode:
                pytest.skip(f"{name} {version} cannot be installed by pip (offline?)")
            shutil.copytree(fetched, folder)
    return folder


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
