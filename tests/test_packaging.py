"""A wheel holds every module of the tree: a package missing from pyproject's list would vanish silently.

.ci/run installs a wheel with its device parts and runs it.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def source_files() -> list[Path]:
    found = [path for folder in ("host", "unwind") for path in (ROOT / folder).rglob("*.py")]
    return [path.relative_to(ROOT) for path in found]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy: the tree's own build folder belongs to an editable install."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("host", "unwind"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, copy)
    words = ["-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", copy / "out", copy]
    done = subprocess.run([sys.executable, *words], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((copy / "out").glob("*.whl"))


def test_wheel_holds_every_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"memleak_android/{path.as_posix()}" for path in source_files()} <= names
    assert {"memleak_android/host/py.typed", "memleak_android/unwind/py.typed"} <= names
    assert any(name.endswith("/licenses/NOTICE") for name in names)
