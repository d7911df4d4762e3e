"""A wheel holds every module of the tree: a package missing from pyproject's list would vanish silently.

.ci/run installs a wheel with its device parts and runs it. It ends in time whatever hangs within it, and says where.
"""

import os
import shutil
import signal
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


HANGS = "lint:\n\t@echo it hangs; sleep 1000\n"
TIMED_OUT = 124  # timeout(1)


@pytest.mark.proof
def test_what_hangs_is_ended_and_named(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "Makefile").write_text(HANGS)
    environment = {name: value for name, value in os.environ.items() if name != "CI_RUN_INNER"}
    with subprocess.Popen(
        ["sh", "-c", "trap '' INT; exec .ci/run"],  # as a shell starts what runs in the background
        cwd=tmp_path,
        env=environment | {"CI_RUN_LIMIT": "1h"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout
        while run.stdout.readline() != "it hangs\n":
            assert run.poll() is None
        run.send_signal(signal.SIGALRM)  # timeout(1) takes it for its own: the hour is over
        _, err = run.communicate()
    assert run.returncode == TIMED_OUT
    assert err.splitlines()[-1].endswith("s (limit 1h), in: make lint")
