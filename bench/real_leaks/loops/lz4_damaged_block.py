import os

import lz4.frame
from common import run

frame = bytearray(lz4.frame.compress(os.urandom(3000) + b"a" * 60000))
frame[20:40] = b"\xff" * 20
damaged = bytes(frame)


def step():
    try:
        lz4.frame.decompress(damaged)
    except RuntimeError:
        return
    raise SystemExit("the frame was taken")


run(step, 300)
