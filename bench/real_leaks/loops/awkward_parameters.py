import awkward
from common import run

layout = awkward.layout.NumpyArray(awkward.nplike.numpy.arange(4), parameters={"__doc__": "d" * 800})


def step():
    assert layout.parameters


run(step, 1500)
