"""A wheel holds every package of the tree: one missing from pyproject's list would vanish silently."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BINARIES = ("memleakd", "libmemleak.so", "memleak-demo", "libmemleak-demo.so")
PREBUILT = ROOT / "host" / "prebuilt" / "x86_64"


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
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        copy / "out",
        copy,
    ]
    done = subprocess.run(argv, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return next((copy / "out").glob("*.whl"))


def test_every_package_is_listed() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {path.parent for path in source_files() if path.name == "__init__.py"}
    expected = {".".join(("memleak_android", *folder.parts)) for folder in folders}
    assert set(setup["packages"]) == expected


def test_wheel_holds_every_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"memleak_android/{path.as_posix()}" for path in source_files()} <= names
    assert {"memleak_android/host/py.typed", "memleak_android/unwind/py.typed"} <= names
    assert any(name.endswith("/licenses/NOTICE") for name in names)


def test_wheel_holds_the_device_binaries_executable(wheel: Path) -> None:
    if not all((PREBUILT / name).exists() for name in BINARIES):
        pytest.skip("the device parts are not built (make device)")
    bundle = zipfile.ZipFile(wheel)
    for name in BINARIES:
        entry = bundle.getinfo(f"memleak_android/host/prebuilt/x86_64/{name}")
        assert entry.external_attr >> 16 & 0o111 == 0o111, name
        assert bundle.read(entry) == (PREBUILT / name).read_bytes(), name


def test_installed_wheel_runs_without_the_tree(wheel: Path, tmp_path: Path) -> None:
    argv: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        tmp_path / "site",
        wheel,
    ]
    subprocess.run(argv, check=True, capture_output=True)
    environment = dict(os.environ, PYTHONPATH=str(tmp_path / "site"))
    code = "import memleak_android.host as host; print(host.__file__)"
    for words, expected in (
        (["-c", code], str(tmp_path)),
        (["-m", "memleak_android.host", "--help"], "Usage:"),
    ):
        argv = [sys.executable, *words]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False
        )
        assert done.stdout.startswith(expected), done.stdout + done.stderr
