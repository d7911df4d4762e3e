from common import run
from frozendict import frozendict

held = frozendict({number: number for number in range(100)})


def step():
    repr(held)


run(step, 500)
