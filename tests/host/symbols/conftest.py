"""The program of the oracles, whole and stripped, made once."""

import subprocess
from pathlib import Path

import pytest

from tests.support.oracles.symbols import INLINING_PROGRAM, compile_cxx, need


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_cxx(INLINING_PROGRAM, tmp_path_factory.mktemp("symbols") / "program")


@pytest.fixture(scope="session")
def stripped(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In a folder of its own."""
    path = tmp_path_factory.mktemp("stripped") / "program"
    subprocess.run([need("strip"), "-o", path, program], check=True)
    return path
