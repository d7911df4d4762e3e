from common import run
from greenlet import greenlet


def work(number):
    return number


run(lambda: greenlet(work).switch(7), 2000)
