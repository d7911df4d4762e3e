"""Workers: processes of this machine, or a running Dask cluster. They bring queues and retries."""

import contextlib
import multiprocessing
import os
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
_SAFE_PATH = "PYTHONSAFEPATH"  # as -P (Python 3.11, "Command line and environment")
_WINDOW = 4  # submitted recordings per worker
_ROUND = 200  # recordings per worker before it is replaced: libraries leak


class Engine(Protocol):
    """Yields one part per recording, in any order."""

    def run(self, recordings: Sequence[StoredRecording], settings: Settings) -> Iterator[Part]: ...


class LocalEngine:
    """Processes of this machine. A killed worker's recording is tried again.

    A new pool replaces old workers. max_tasks_per_child does not: up to Python 3.13 the pool takes an ended worker for an
    idle one and hangs (https://github.com/python/cpython/issues/115634).
    """

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def run(self, recordings: Sequence[StoredRecording], settings: Settings) -> Iterator[Part]:
        waiting, suspects = deque(recordings), deque[StoredRecording]()
        with _safe_imports():
            while waiting:
                yield from self._round(waiting, settings, suspects)
                while suspects:  # any of them may have killed the worker: run each alone
                    yield _alone(suspects.popleft(), settings)

    def _round(
        self, waiting: deque[StoredRecording], settings: Settings, suspects: deque[StoredRecording]
    ) -> Iterator[Part]:
        """Runs until a worker dies; `suspects` receives the recordings that were submitted then."""
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


def _alone(recording: StoredRecording, settings: Settings) -> Part:
    for _ in range(TRIES):
        with _pool(1) as pool, contextlib.suppress(BrokenProcessPool):
            return pool.submit(process, recording, settings).result()
    return dead_worker(recording, settings, TRIES)


@contextlib.contextmanager
def _safe_imports() -> Iterator[None]:
    """Interpreters that start meanwhile import nothing from the working directory.

    multiprocessing starts workers by `python -c`, to which it gives -P only if this interpreter has it.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def _pool(jobs: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")  # fork() is unsafe if the caller has threads
    return ProcessPoolExecutor(jobs, mp_context=context)


class DaskEngine:
    """A Dask cluster.

    address: of the scheduler, such as tcp://HOST:8786. Raises UsageError if it does not answer.
    """

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
                f"no Dask scheduler answers at {address}: {reason_of(error)}",
                "start one with `dask scheduler`",
            ) from None

    def run(self, recordings: Sequence[StoredRecording], settings: Settings) -> Iterator[Part]:
        from distributed import KilledWorker

        waiting = iter(recordings)
        with self._client:
            n_threads = max(1, sum(self._client.nthreads().values()))
            first = [self._submit(recording, settings) for recording in islice(waiting, n_threads * _WINDOW)]
            running = self._as_completed(first)
            of_key = {future.key: recording for future, recording in zip(first, recordings, strict=False)}
            for future in running:
                recording = of_key.pop(future.key)
                try:
                    yield future.result()
                except KilledWorker:
                    yield dead_worker(recording, settings, TRIES)
                future.release()
                for following in islice(waiting, 1):
                    following_future = self._submit(following, settings)
                    of_key[following_future.key] = following
                    running.add(following_future)

    def _submit(self, recording: StoredRecording, settings: Settings) -> Any:
        return self._client.submit(
            process,
            recording,
            settings,
            key=f"memleak-{settings.key(recording)}",
            retries=TRIES - 1,
            pure=False,
        )


def find_engine(name: str, jobs: int) -> Engine:
    """name: local, or dask://HOST:PORT. Raises UsageError."""
    if name == "local":
        return LocalEngine(jobs)
    scheme, _, address = name.partition("://")
    if scheme != "dask" or not address:
        raise UsageError(f"{name} is not an engine", "write local or dask://HOST:PORT")
    return DaskEngine(f"tcp://{address}")
