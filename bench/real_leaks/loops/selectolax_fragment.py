from common import run
from selectolax.lexbor import LexborHTMLParser

page = "<div class=a><p>text</p></div>"


def step():
    LexborHTMLParser(page, is_fragment=True)


run(step, 100)
