import io

import msgpack
from common import run

data = b"".join(msgpack.packb(number) for number in range(20))


def step():
    for _ in msgpack.Unpacker(io.BytesIO(data)):
        pass


run(step, 1000)
