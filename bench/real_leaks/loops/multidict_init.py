from common import run
from multidict import CIMultiDict

agent = "User-Agent"


def step():
    CIMultiDict({agent: "test"}).get(agent)


run(step, 3000)
