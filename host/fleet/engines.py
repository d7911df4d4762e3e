"""Who does the work: processes of this machine, or a Dask cluster that runs already. Queues and retries are theirs."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Any, Protocol

from memleak_android.host.errors import UsageError
from memleak_android.host.fleet.processing import Part, Settings, dead_worker, process
from memleak_android.host.fleet.sources import StoredRecording, reason_of

TRIES = 3  # of a recording whose worker dies
_WINDOW = 4  # recordings per worker that are under way or wait for it
_ROUND = 200  # recordings per worker; then new ones, whatever a library has leaked into the old


class Engine(Protocol):
    """Parts come in any order, each recording's once."""

    def run(self, recordings: Sequence[StoredRecording], settings: Settings) -> Iterator[Part]: ...


class LocalEngine:
    """Processes of this machine. One that is killed costs its recording another try.

    Workers are replaced by a pool of new ones, not by the pool (max_tasks_per_child): up to Python 3.13 it takes one
    that has ended for an idle one, and waits for ever when nothing more is submitted
    (https://github.com/python/cpython/issues/115634).
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, recordings: Sequence[StoredRecording], settings: Settings) -> Iterator[Part]:
        waiting, suspects = deque(recordings), deque[StoredRecording]()
        while waiting:
            yield from self._round(waiting, settings, suspects)
            while suspects:  # nobody knows whose fault it was: each alone
                yield _alone(suspects.popleft(), settings)

    def _round(
        self,
        waiting: deque[StoredRecording],
        settings: Settings,
        suspects: deque[StoredRecording],
    ) -> Iterator[Part]:
        """Up to the death of a worker: suspects gets what was under way then."""
        running: dict[Future[Part], StoredRecording] = {}
        left = self._jobs * _ROUND
        with _pool(self._jobs) as pool:
            try:
                while (waiting and left) or running:
                    while waiting and left and len(running) < self._jobs * _WINDOW:
                        running[pool.submit(process, waiting[0], settings)] = waiting[0]
                        waiting.popleft()
                        left -= 1
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        part = future.result()
                        del running[future]
                        yield part
            except BrokenProcessPool:
                suspects.extend(running.values())
            finally:
                pool.shutdown(wait=True, cancel_futures=True)


def _alone(one: StoredRecording, settings: Settings) -> Part:
    for _ in range(TRIES):
        with _pool(1) as pool, contextlib.suppress(BrokenProcessPool):
            return pool.submit(process, one, settings).result()
    return dead_worker(one, settings, TRIES)


def _pool(jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # whatever threads our caller has
    return ProcessPoolExecutor(jobs, mp_context=context)


class DaskEngine:
    """A scheduler's address, such as tcp://HOST:8786. Raises UsageError where nobody answers there."""

    def __init__(self, address: str, connect: Callable[..., Any] | None = None) -> None:
        try:
            from distributed import Client, as_completed
        except ImportError:
            raise UsageError("--engine dask needs Dask", "pip install 'memleak-android[dask]'") from None
        self._as_completed: Any = as_completed
        try:
            self._client = (connect or Client)(address, timeout="10s")
        except OSError as error:
            raise UsageError(
                f"no Dask scheduler answers at {address}: {reason_of(error)}", "start one by `dask scheduler`"
            ) from None

    def run(self, recordings: Sequence[StoredRecording], settings: Settings) -> Iterator[Part]:
        from distributed import KilledWorker

        waiting = iter(recordings)
        with self._client:
            n_threads = max(1, sum(self._client.nthreads().values()))
            first = [self._submit(one, settings) for one in islice(waiting, n_threads * _WINDOW)]
            under_way = self._as_completed(first)
            of_key = {future.key: one for future, one in zip(first, recordings, strict=False)}
            for future in under_way:
                one = of_key.pop(future.key)
                try:
                    yield future.result()
                except KilledWorker:
                    yield dead_worker(one, settings, TRIES)
                future.release()
                for following in islice(waiting, 1):
                    following_future = self._submit(following, settings)
                    of_key[following_future.key] = following
                    under_way.add(following_future)

    def _submit(self, one: StoredRecording, settings: Settings) -> Any:
        return self._client.submit(
            process, one, settings, key=f"memleak-{settings.key(one)}", retries=TRIES - 1, pure=False
        )


def find_engine(name: str, jobs: int) -> Engine:
    """name: local, or dask://HOST:PORT. Raises UsageError."""
    if name == "local":
        return LocalEngine(jobs)
    scheme, _, address = name.partition("://")
    if scheme != "dask" or not address:
        raise UsageError(f"no engine is called {name}", "write local or dask://HOST:PORT")
    return DaskEngine(f"tcp://{address}")
