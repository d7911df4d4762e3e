"""`record --cache URL`: what a session pulled from its device goes to where the workers of `fleet report` look for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from memleak_android.host.console import say
from memleak_android.host.errors import UsageError

Share = Callable[[Mapping[str, Path]], None]


def share_nothing(kept: Mapping[str, Path]) -> None:
    """Without --cache."""


def open_share(url: str) -> Share:
    """What takes copies by build-id, once there are any. Raises UsageError for a place that cannot be written."""
    if not url:
        return share_nothing
    try:
        from memleak_android.host.fleet import named_cache
        from memleak_android.host.fleet.sources import local_path
    except ImportError as error:
        raise UsageError(f"--cache needs {error.name}", "pip install 'memleak-android[fleet]'") from None
    place = local_path(url) or url
    named_cache.check_cache(place)

    def share(kept: Mapping[str, Path]) -> None:
        cache = named_cache.open_cache(place)
        for build_id, copy in kept.items():
            cache.share_device_file(build_id, [copy])
        for reason in cache.failures:
            say(
                f"the device's libraries could not be put into {url}: {reason}; put them there by another session"
            )

    return share
