from common import run
from selectolax.lexbor import LexborHTMLParser

page = "<div class=a><p>text</p></div>"


def step():
    LexborHTMLParser(page).css_first("p").text()


run(step, 100)
