import msgpack
from common import run

data = msgpack.packb({("k" * 50): [1, 2], 5: "b" * 2000})


def step():
    try:
        msgpack.unpackb(data)
    except ValueError:
        return
    raise SystemExit("taken")


run(step, 3000)
