"""Cache directories in the environments that users, daemons and containers have."""

import pwd
from pathlib import Path

import pytest

from memleak_android.host.cache_folder import cache_base


@pytest.mark.parametrize(
    ("cache", "home", "base"),
    [
        ("/var/cache/x", "/home/a", "/var/cache/x"),
        ("relative", "/home/a", "/home/a/.cache"),
        ("", "/home/a", "/home/a/.cache"),
    ],
)
def test_where(cache: str, home: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.setenv("HOME", home)
    assert cache_base() == Path(base)


def test_a_user_id_without_name_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_user(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    with pytest.raises(RuntimeError):
        Path.home()
    assert cache_base() == Path("/nonexistent/.cache")
