"""Storage of stack bytes while a session runs."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.session.spool import open_spool
from tests.support.builders.second_user import UID, needs_second_user


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that cannot be made, as another user's home; the temporary directory is the test's own."""
    (tmp_path / "home").write_text("no directory")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_home_of_another_user(no_cache: Path) -> None:
    with open_spool() as spool:
        assert spool.is_relative_to(no_cache)
        assert spool.stat().st_mode & 0o077 == 0
    assert not spool.exists()


@needs_second_user
def test_a_folder_that_another_user_has_made_stops_no_session(no_cache: Path) -> None:
    taken = no_cache / f"memleak-android-spool-{os.getuid()}"
    taken.mkdir()
    os.chown(taken, UID, UID)
    with open_spool() as spool:
        assert spool.parent == no_cache and spool.stat().st_mode & 0o777 == 0o700
    assert os.listdir(no_cache) == [taken.name] and not os.listdir(taken)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems; trying again would never end."""

    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UsageError, match=r"cannot be locked \(No locks available\)"), open_spool():
        pass
    assert not list((tmp_path / "memleak-android/spool").iterdir())


def test_what_a_dead_session_left_goes_and_what_lives_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with open_spool() as living:
        (living.parent / "1-left" / "stacks").mkdir(parents=True)
        (living.parent / "no-folder").touch()
        with open_spool() as other:
            assert sorted(living.parent.iterdir()) == sorted([living, other, living.parent / "no-folder"])
            assert {path.stat().st_mode & 0o777 for path in (living, other)} == {0o700}
    assert list(living.parent.iterdir()) == [living.parent / "no-folder"]
