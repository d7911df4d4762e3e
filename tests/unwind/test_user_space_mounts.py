"""Files of a file system in user space: read while its server answers, and never waited for otherwise."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.unwind import abandonable_calls, user_space_mounts
from memleak_android.unwind.file_reading import file_status, read_file, status_in_mount
from tests.support.fakes.silent_files import SilentFile, serving

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a file system")
CONTENTS = os.urandom(3 << 20)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentFile]:
    monkeypatch.setattr(abandonable_calls, "_callee", abandonable_calls._Callee())
    monkeypatch.setattr(abandonable_calls._callee, "patience_s", 2.0)
    (tmp_path / "contents").write_bytes(CONTENTS)
    with serving(tmp_path / "mounted", tmp_path / "contents") as file:
        yield file


def test_it_is_read_until_its_server_is_silent(served: SilentFile, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(served.path)
    assert read_file(tmp_path / "link", 1 << 30) == CONTENTS
    assert file_status(served.path).st_size == len(CONTENTS)
    served.silence()
    for read in (lambda path: read_file(path, 1 << 30), file_status):
        with pytest.raises(TimeoutError) as late:
            read(tmp_path / "link")
        assert re.fullmatch(r"nothing came from its file system for [\d.]+ s", late.value.strerror or "")
        assert late.value.filename == tmp_path / "link"


def test_another_user_s_is_asked_for_nothing(served: SilentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_space_mounts.ServedMount, "is_trusted", False)
    served.path.stat()  # the kernel keeps its name, and asks for no more than is asked of it
    served.silence()
    with pytest.raises(PermissionError) as refused:
        read_file(served.path, 1 << 30)
    assert refused.value.errno == errno.EACCES and "FUSE" in str(refused.value)


def test_whose_a_mount_is(served: SilentFile) -> None:
    mounts = user_space_mounts.served_mounts(f"/proc/{os.getpid()}/root{served.path}")
    descriptor = os.open(served.path, os.O_PATH)
    (mount,) = (one for one in mounts if one.mount_id == user_space_mounts.mount_of(descriptor))
    os.close(descriptor)
    served.silence()
    assert status_in_mount(str(served.path), [mount.mount_id + 1]) is None
    assert mount.user == 0 and mount.is_trusted
    assert not user_space_mounts.ServedMount(1, 12345).is_trusted
    assert not user_space_mounts.ServedMount(1, None).is_trusted
