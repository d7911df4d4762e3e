import ujson
from common import run

text = "7" * 1200


def step():
    ujson.loads(text)


run(step, 1500)
