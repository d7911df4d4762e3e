import hiredis
from common import run

reader = hiredis.Reader()


def step():
    reader.feed(b"%1\r\n$900\r\n" + b"k" * 900 + b"\r\n$900\r\n" + b"v" * 900 + b"\r\n")
    reader.gets()


run(step, 2000)
