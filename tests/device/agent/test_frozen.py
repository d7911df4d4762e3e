"""A frozen process: refused by its name before anything is begun, and nothing happens in it after the thaw."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device.agent.test_attach_refusals import UNHARMED, need_root, refusal
from tests.support.attached_session import loaded
from tests.support.attaching import until

pytestmark = pytest.mark.compares_code

# version → kind of mount, mount option, file to write, texts that freeze and thaw, (file to read, text of the frozen state)
VERSIONS = {
    "v2": ("cgroup2", "", "cgroup.freeze", ("1", "0"), ("cgroup.events", "frozen 1")),
    "v1": ("cgroup", "freezer", "freezer.state", ("FROZEN", "THAWED"), ("freezer.state", "FROZEN")),
}


@pytest.fixture(params=list(VERSIONS))
def group(request: pytest.FixtureRequest) -> Iterator[tuple[Path, str]]:
    need_root()
    kind, option, *_ = VERSIONS[request.param]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    folders = [Path(row[1]) for row in mounts if row[2] == kind and option in row[3]]
    if not folders:
        pytest.skip(f"no {kind} {option} is mounted")
    folder = folders[0] / f"memleak-test-{os.getpid()}"
    folder.mkdir()
    yield folder, request.param
    until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_it_is_refused(group: tuple[Path, str]) -> None:
    folder, version = group
    _, _, switch, (freeze, thaw), (state, frozen) = VERSIONS[version]
    with loaded(1) as process:
        (folder / "cgroup.procs").write_text(str(process.pid))
        (folder / switch).write_text(freeze)
        try:
            assert until(lambda: frozen in (folder / state).read_text())
            assert "process PID is frozen with its control group" in refusal(process.pid, "plt")
        finally:
            (folder / switch).write_text(thaw)
        out, _ = process.communicate(b"q")
        assert out.strip() == UNHARMED.encode()
