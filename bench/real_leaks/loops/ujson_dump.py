import ujson
from common import run

document = {"items": list(range(300))}


class Full:
    def write(self, text):
        raise OSError("no space left")


def step():
    try:
        ujson.dump(document, Full())
    except OSError:
        return
    raise SystemExit("the file took it")


run(step, 1000)
