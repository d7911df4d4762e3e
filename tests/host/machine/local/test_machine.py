"""This machine answers as a device does."""

from pathlib import Path

import pytest

from memleak_android.host.errors import DeviceError
from memleak_android.host.machine.local.machine import LocalMachine

HERE = LocalMachine()


def test_streams_and_exit_status() -> None:
    answer = HERE.run(["sh", "-c", "cat; echo err >&2; exit 7"], stdin=b"in")
    assert (answer.code, answer.out, answer.err) == (7, b"in", b"err\n")
    assert HERE.run(["sh", "-c", "kill -9 $$"]).code == 128 + 9


def test_programs_that_cannot_be_started(tmp_path: Path) -> None:
    assert HERE.run(["/no/such/program"]).code == 127
    assert HERE.run([str(tmp_path)]).code == 126


def test_a_program_that_hangs_is_given_up() -> None:
    with pytest.raises(DeviceError, match=r"sleep did not end within 0\.2 s"):
        HERE.run(["sleep", "1000"], timeout_s=0.2)


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    assert HERE.read_file(str(tmp_path / "a")) == b"0123456789"
    HERE.pull(str(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"0123456789"
    monkeypatch.setattr("memleak_android.host.machine.target.PULL_BYTES_MAX", 9)
    with pytest.raises(OSError, match="more than 9 bytes"):
        HERE.pull(str(tmp_path / "a"), tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_files_stay_where_they_are(tmp_path: Path) -> None:
    with HERE.deploy({"memleakd": tmp_path / "agent"}) as deployment:
        assert deployment.paths == {"memleakd": str(tmp_path / "agent")}
