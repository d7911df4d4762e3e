import nh3
from common import run

page = "<div><p>" + "a text <b>in bold</b>, <a href='https://example.com'>a link</a> " * 20 + "</p></div>"
run(lambda: nh3.clean(page), 200)
