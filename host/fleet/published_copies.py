"""`record --cache URL`: puts files pulled from a device into the cache that `fleet report` reads."""

from collections.abc import Callable, Mapping
from pathlib import Path

from memleak_android.host.console import say
from memleak_android.host.errors import UsageError

Share = Callable[[Mapping[str, Path]], None]


def share_nothing(kept: Mapping[str, Path]) -> None:
    """Does nothing: there is no --cache."""


def open_share(url: str) -> Share:
    """A function that publishes copies by build-id. Raises UsageError if the cache is not writable."""
    if not url:
        return share_nothing
    try:
        from memleak_android.host.fleet import named_cache
        from memleak_android.host.fleet.sources import local_path
    except ImportError as error:
        raise UsageError(f"--cache needs {error.name}", "pip install 'memleak-android[fleet]'") from None
    location = local_path(url) or url
    named_cache.check_cache(location)

    def share(kept: Mapping[str, Path]) -> None:
        cache = named_cache.open_cache(location)
        for build_id, copy in kept.items():
            cache.share_device_file(build_id, [copy])
        for reason in cache.failures:
            say(f"could not put the device's libraries into {url}: {reason}; another session can do it")

    return share
