import cv2
import numpy
from common import run

doubles = numpy.zeros((8, 8, 3))


def step():
    try:
        cv2.cvtColor(doubles, cv2.COLOR_BGR2GRAY)
    except cv2.error:
        return
    raise SystemExit("doubles were taken")


run(step, 1000)
