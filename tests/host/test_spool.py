"""Where stack bytes lie while a session runs."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.spool import open_spool


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that cannot be made, as another user's home; the temporary directory is the test's own."""
    (tmp_path / "home").write_text("no directory")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def test_home_of_another_user(no_cache: Path) -> None:
    with open_spool() as place:
        assert place.is_relative_to(no_cache)
        assert place.stat().st_mode & 0o077 == 0
    assert not place.exists()


def test_a_folder_that_others_may_read_is_not_used(no_cache: Path) -> None:
    (no_cache / f"memleak-android-spool-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="not a private folder"), open_spool():
        pass
