"""The PLT hook under bionic, and under glibc of arm64 and arm32: by the entry points that every way in calls."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.attached_program import session_name
from tests.support.foreign_libc import ForeignLibc, each_libc
from tests.support.preload_session import PreloadSession, await_process

HERE = Path(__file__).parent
LIBRARY = HERE.parents[1] / "device" / "programs" / "slot_library.c"


@dataclass(frozen=True, slots=True)
class Attached:
    libc: ForeignLibc
    session: PreloadSession
    out: str


@pytest.fixture(scope="module", params=each_libc)
def attached(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attached]:
    libc: ForeignLibc = request.param
    libc.need()
    folder = tmp_path_factory.mktemp(libc.name)
    environment = libc.environment(folder)
    name, said = session_name(), []
    command = [libc.emulator, "-L", libc.root(folder), libc.compiled(HERE / "attach.c", folder)]
    command += [environment["MEMLEAK_SHIM"], f"{name} mode=plt", libc.compiled_library(LIBRARY, folder)]

    def act() -> None:
        run = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60)
        assert run.returncode == 0, run.stderr
        said.append(run.stdout)

    with pytest.MonkeyPatch.context() as patch:
        for variable in ("MEMLEAKD", "MEMLEAK_SHIM"):
            patch.setenv(variable, environment[variable])
        yield Attached(libc, await_process(name, act, stops=True), said[0])


def test_it_attaches_follows_a_library_and_detaches(attached: Attached) -> None:
    assert attached.out.split("\n")[:3] == ["attach 0", "library 1", "detach 0"]


def test_what_is_live_is_what_was_allocated_between(attached: Attached) -> None:
    sizes = attached.session.sizes()
    assert {size: sizes[size] for size in (101, 103, 107, 109, 133, 70001)} == {
        101: 0, 103: 6, 107: 1, 109: 0, 133: 1, 70001: 1,
    }  # fmt: skip
    assert attached.session.status["untracked_frees"] >= 5


def test_each_module_says_since_when(attached: Attached) -> None:
    rows = np.concatenate(attached.session.hooked)
    (late,) = rows[rows["name"] == b"library.so"]
    assert late["n_slots"] == 1
    assert 0 < late["since_ns"] < late["patched_ns"]
    (program,) = rows[rows["flags"] == 16]
    assert program["n_slots"] == 4
    assert program["since_ns"] == 0
