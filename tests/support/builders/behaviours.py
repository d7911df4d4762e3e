"""How programs hold memory over time: twenty behaviours, each drawn block by block, and what snapshots see of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """n blocks. born, dies: (n,) seconds of the session; inf = never. size: (n,) bytes."""

    born: Floats
    dies: Floats
    size: Floats

    def __add__(self, other: Blocks) -> Blocks:
        columns = ("born", "dies", "size")
        return Blocks(*(np.concatenate([getattr(one, name) for one in (self, other)]) for name in columns))

    def held(self, seconds: Floats) -> tuple[Floats, Floats]:
        """(t,) bytes held at each instant, and by those blocks of them that are held at the last one, too."""
        stays = self.dies > seconds[-1]
        came = _sums(self.born, self.size, seconds)
        went = _sums(self.dies, self.size, seconds)
        return came - went, _sums(self.born[stays], self.size[stays], seconds)


Behaviour = Callable[[np.random.Generator, float], Blocks]  # of a session of so many seconds


def _sums(times: Floats, size: Floats, seconds: Floats) -> Floats:
    order = np.argsort(times)
    sums = np.concatenate([[0.0], np.cumsum(size[order])])
    return np.asarray(sums[np.searchsorted(times[order], seconds, "right")])


def _kept(born: Floats, size: float | Floats = 1009.0) -> Blocks:
    return Blocks(born, np.full(len(born), np.inf), np.broadcast_to(np.float64(size), born.shape).copy())


def _at_random(random: np.random.Generator, rate: float, begin: float, end: float) -> Floats:
    return random.uniform(begin, end, random.poisson(rate * (end - begin)))


def _churn(random: np.random.Generator, end: float, rate: float = 40.0, lasts: float = 1.0) -> Blocks:
    """Requests that give back what they take."""
    born = _at_random(random, rate, -5 * lasts, end)
    return Blocks(born, born + random.exponential(lasts, len(born)), random.uniform(200, 4000, len(born)))


# ---- leaks ---------------------------------------------------------------------------------------


def even(every: float, size: float = 1009.0) -> Behaviour:
    return lambda random, end: _kept(np.arange(random.uniform(0, every), end, every), size)


def at_requests(rate: float) -> Behaviour:
    return lambda random, end: _kept(_at_random(random, rate, 0, end))


def beside_churn(random: np.random.Generator, end: float) -> Blocks:
    return at_requests(10)(random, end) + _churn(random, end)


def from_late_on(random: np.random.Generator, end: float) -> Blocks:
    return _kept(_at_random(random, 20, end * random.uniform(0.2, 0.6), end))


def after_start_up(random: np.random.Generator, end: float) -> Blocks:
    return even(0.05)(random, end) + _kept(np.full(40, 1.3), 20_011.0)


def after_long_start_up(share: float, leak: float) -> Behaviour:
    """Start-up takes `share` of the session in sixty steps; then `leak` of what it took leaks, until the end."""

    def draw(random: np.random.Generator, end: float) -> Blocks:
        begins, leaked = share * end, int(400 * (1 - share))
        started = _kept(np.sort(random.uniform(0, begins, 60)), random.exponential(1e6, 60))
        born = np.sort(random.uniform(begins, end, leaked))
        return started + _kept(born, leak * started.size.sum() / leaked) + _churn(random, end)

    return draw


def in_chunks(random: np.random.Generator, end: float) -> Blocks:
    """An arena takes 64 KiB each time it is used up."""
    return _kept(np.cumsum(random.uniform(0.8, 1.2, int(end / 0.03)) * end / 25), 65_536.0)


def under_changing_load(random: np.random.Generator, end: float) -> Blocks:
    """The load swings by two thirds around its mean, twice in the session."""
    born, phase = _at_random(random, 50, 0, end), random.uniform(0, 2 * np.pi)
    load = 1 + np.sin(4 * np.pi * born / end + phase) * 2 / 3
    return _kept(born[random.uniform(0, 5 / 3, len(born)) < load])


def in_batches(random: np.random.Generator, end: float) -> Blocks:
    """A job leaks 50 blocks at once, at random times."""
    jobs = _at_random(random, 60 / end, 0, end)
    return _kept(np.repeat(jobs, 50) + random.uniform(0, 0.05, 50 * len(jobs)))


def a_list_that_grows(random: np.random.Generator, end: float) -> Blocks:
    """realloc() in steps of a page: each block goes when the next comes."""
    born = np.arange(random.uniform(0, 0.4), end, 0.4)
    return Blocks(born, np.append(born[1:], np.inf), 4096.0 * (1 + np.arange(len(born))))


def under_a_sawtooth(random: np.random.Generator, end: float) -> Blocks:
    """The same place leaks and fills a buffer that is flushed."""
    return at_requests(40)(random, end) + sawtooth(1 / 6, 20_000.0)(random, end)


# ---- no leaks ------------------------------------------------------------------------------------


def cache(full_at: float) -> Behaviour:
    """Is full after this share of the session, and then replaces entries at random."""

    def draw(random: np.random.Generator, end: float) -> Blocks:
        entries, rate = 2000, 2000 / (end * full_at)
        born = np.sort(random.uniform(0, end, random.poisson(rate * end)))
        dies, slots = np.full(len(born), np.inf), list(range(min(entries, len(born))))
        for new in range(entries, len(born)):
            slot = int(random.integers(entries))
            dies[slots[slot]], slots[slot] = born[new], new
        return Blocks(born, dies, random.uniform(500, 1500, len(born)))

    return draw


def cache_of_random_keys(random: np.random.Generator, end: float) -> Blocks:
    """5,000 keys, each kept when it is first asked for."""
    asked = random.exponential(end / 6, 5000)
    return _kept(asked[asked < end])


def sawtooth(share: float, space: float = 1e6) -> Behaviour:
    """A buffer is filled and flushed; `share` of the session each time."""

    def draw(random: np.random.Generator, end: float) -> Blocks:
        period = share * end
        born = np.arange(-period * random.uniform(), end, period / 100)
        flush = -period * random.uniform()
        return Blocks(
            born, flush + (np.floor((born - flush) / period) + 1) * period, np.full(len(born), space / 100)
        )

    return draw


def pool(random: np.random.Generator, end: float) -> Blocks:
    """Grows to the largest number of requests at once, and gives nothing back."""
    requests = _churn(random, end, 50, 0.4)
    grid = np.linspace(0, end, int(end * 20))
    each = np.ones(len(requests.born))
    busy = _sums(requests.born, each, grid) - _sums(requests.dies, each, grid)
    most = np.maximum.accumulate(np.maximum(busy, 0))
    new = np.diff(most, prepend=0).astype(int)
    return _kept(np.repeat(grid, new), 8192.0)


def queue(come: float, go: float, oldest_first: bool) -> Behaviour:
    """Blocks come and go at random times, so many a second: the oldest, or any."""

    def draw(random: np.random.Generator, end: float) -> Blocks:
        comes, goes = (_at_random(random, rate, 0, end) for rate in (come, go))
        times = np.concatenate([comes, goes])
        order = np.argsort(times)
        born, dies, waiting = [0.0] * 20, [np.inf] * 20, list(range(20))
        for moment, is_new in zip(times[order].tolist(), (order < len(comes)).tolist(), strict=True):
            if is_new:
                waiting.append(len(born))
                born.append(moment)
                dies.append(np.inf)
            elif waiting:
                dies[waiting.pop(0 if oldest_first else int(random.integers(len(waiting))))] = moment
        return Blocks(np.array(born), np.array(dies), np.full(len(born), 1009.0))

    return draw


def stack_of_random_depth(random: np.random.Generator, end: float) -> Blocks:
    """Buffers that are pushed and popped at random times: the last to come goes first."""
    born, dies, held = [0.0] * 20, [np.inf] * 20, list(range(20))
    for moment in np.sort(_at_random(random, 60, 0, end)).tolist():
        if random.uniform() < 0.5 or not held:
            held.append(len(born))
            born.append(moment)
            dies.append(np.inf)
        else:
            dies[held.pop()] = moment
    return Blocks(np.array(born), np.array(dies), np.full(len(born), 1009.0))


def stops(random: np.random.Generator, end: float) -> Blocks:
    return _kept(_at_random(random, 40, 0, end * random.uniform(0.3, 0.6)))


def once(random: np.random.Generator, end: float) -> Blocks:
    at = end * random.uniform(0.1, 0.9)
    return _kept(np.full(300, at)) + _churn(random, end)


def only_churn(random: np.random.Generator, end: float) -> Blocks:
    return _churn(random, end)


def log_rotated(random: np.random.Generator, end: float) -> Blocks:
    return sawtooth(random.uniform(0.2, 0.8))(random, end) + _churn(random, end)


def load_that_swings(random: np.random.Generator, end: float) -> Blocks:
    """Sessions of users: their number swings twice in the time."""
    born, phase = _at_random(random, 100, -20, end), random.uniform(0, 2 * np.pi)
    load = 1 + np.sin(4 * np.pi * born / end + phase) * 2 / 3
    born = born[random.uniform(0, 5 / 3, len(born)) < load]
    return Blocks(born, born + random.exponential(end / 30, len(born)), np.full(len(born), 1009.0))


def beside_a_queue(random: np.random.Generator, end: float) -> Blocks:
    return at_requests(10)(random, end) + queue(50, 50, True)(random, end)


def at_uneven_requests(random: np.random.Generator, end: float) -> Blocks:
    """In each second at a rate of its own."""
    counts = random.poisson(random.exponential(20, int(end)))
    return _kept(np.repeat(np.arange(int(end)), counts) + random.uniform(0, 1, counts.sum()))


LEAKS: Mapping[str, Behaviour] = {
    "even": even(0.01),
    "even, seldom": even(2.0),
    "at requests": at_requests(10),
    "on errors only": at_requests(0.7),
    "beside churn": beside_churn,
    "from late on": from_late_on,
    "after start-up": after_start_up,
    "after a long start-up": after_long_start_up(0.4, 0.2),
    "in chunks": in_chunks,
    "under changing load": under_changing_load,
    "in batches": in_batches,
    "a list that grows": a_list_that_grows,
    "under a sawtooth": under_a_sawtooth,
    "beside a queue": beside_a_queue,
    "at uneven requests": at_uneven_requests,
    "backlog": queue(65, 50, True),
}
NO_LEAKS: Mapping[str, Behaviour] = {
    "cache, soon full": cache(0.2),
    "cache, late full": cache(0.5),
    "cache of random keys": cache_of_random_keys,
    "sawtooth": sawtooth(1 / 2.5),
    "log rotated": log_rotated,
    "pool": pool,
    "queue, oldest first": queue(50, 50, True),
    "queue, any first": queue(50, 50, False),
    "stack of random depth": stack_of_random_depth,
    "start-up": after_long_start_up(0.6, 0),
    "stops": stops,
    "once": once,
    "only churn": only_churn,
    "load that swings": load_that_swings,
}
