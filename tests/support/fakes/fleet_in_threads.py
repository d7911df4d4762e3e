"""`fleet report` whose workers are threads, for program_server: it reads what a run imports late once for all runs."""

from concurrent.futures import ThreadPoolExecutor

import scipy.stats  # noqa: F401

from memleak_android.host.fleet import engines


def prepare() -> None:
    engines._pool = ThreadPoolExecutor  # type: ignore[assignment]
