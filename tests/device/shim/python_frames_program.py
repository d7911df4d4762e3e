"""Keeps one buffer in each of several places, and tells the frames that it has itself seen there."""

import contextlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

kept, seen = [], {}


def frames(frame):
    while frame:
        code = frame.f_code
        yield [getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno]
        frame = frame.f_back


def keep(size):
    seen[size] = list(frames(sys._getframe(1)))
    kept.append(bytearray(size))


class Worker:
    def handle(self, size):
        if size:
            keep(
                size,
            )

    @property
    def lazy(self):
        return self.handle(20_001)


def made(size):
    yield keep(size)
    for each in [size + 1]:
        yield keep(each)


def recursing(depth, size):
    return recursing(depth - 1, size) if depth else keep(size)


def grüße_von_überall(size):
    keep(size)


async def coroutine(size):
    await inner(size)


async def inner(size):
    keep(size)


class Dying:
    def __del__(self):
        keep(20_110)


def returning(_):
    dying = Dying()  # noqa: F841


def first_lines(size):
    keep(size)


Worker().handle(20_000)
kept.append(Worker().lazy)
list(made(20_010))
sorted([20_020], key=lambda size: keep(size) or size)
reduce(lambda _, size: [keep(each) for each in [size]] and size, [0, 20_030])
recursing(50, 20_040)
recursing(300, 20_041)
grüße_von_überall(20_050)
exec(compile("\n\ndef made_by_exec(size):\n    keep(size)\n\nmade_by_exec(20_060)\n", "<template>", "exec"))  # noqa: S102
first_lines(20_070)
with contextlib.suppress(StopIteration):
    coroutine(20_080).send(None)
thread = threading.Thread(target=Worker().handle, args=(20_090,))
thread.start()
thread.join()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(grüße_von_überall, [20_100]))
list(map(returning, [0]))
json.dump(seen, sys.stdout)
sys.stdout.flush()
os._exit(0)
