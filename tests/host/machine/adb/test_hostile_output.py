"""Hostile output of every program of a device: read in bounded time, or refused in one line."""

import itertools
import signal
from collections.abc import Callable, Iterator

import pytest

from memleak_android.host.console import one_line
from memleak_android.host.errors import MemleakError
from memleak_android.host.machine.adb.app import check_package, parse_app, parse_processes
from memleak_android.host.machine.adb.facts import parse_facts
from memleak_android.host.machine.parse import decimal, parse_listed, parse_maps, parse_status
from memleak_android.host.tracers.inline.target import reserved

_ALL = 1 << 20  # characters
_NUMBER_FIELDS = ("PID UID NAME\n{0} {0} com.example.app\n", "{0}-{0} r-xp {0} 00:00 {0} /x\n", "Tgid: {0}\n")
_PACKAGE = "Packages:\n  Package [com.example.app] (1):\n"
_HANG_S = 60  # nothing here takes a second; what takes the square of a megabyte takes hours

HOSTILE = {
    "nothing": "",
    "newlines": "\n" * _ALL,
    "blanks": " " * _ALL,
    "blank lines after a package": _PACKAGE + " \n" * (_ALL // 2),
    "brackets that never close": _PACKAGE + "flags=[\n" * (_ALL // 8),
    "one line of brackets": _PACKAGE + "    flags=[" * (_ALL // 11),
    "packages without end": "  Package [com.example.app]\n" * (_ALL // 28),
    "slashes": " /" * (_ALL // 2),
    "addresses": "/x" + " (0x1" * (_ALL // 5),
    "arrows": "a => " * (_ALL // 5),
    "a number of a million digits": _PACKAGE + "    appId=" + "9" * _ALL,
    "a superscript": _PACKAGE + "    appId=²\nro.build.version.sdk=²\n",
    "Arabic digits": _PACKAGE + "    appId=١٠١٢٣\nro.build.version.sdk=٣٠\n",
    "carriage returns": "Package [com.example.app]\r\r\n\rappId=1\r\n" * 1000,
    "escape sequences": "\x1b]0;owned\x07\x1b[2J" * (_ALL // 16),
    "bytes that are no text": b"\xff\xfe\x00".decode("utf-8", "replace") * (_ALL // 3),
    "surrogates": "\udcff" * _ALL,
    **{
        f"{number[:12]} in {field.split()[0]}": field.format(number)
        for number, field in itertools.product(
            ("9" * 5000, "f" * 40, "-1", "²", "1_0", "0x1"), _NUMBER_FIELDS
        )
    },
}
READERS: dict[str, Callable[[str], object]] = {
    "dumpsys": lambda text: parse_app("com.example.app", 0, ["/x"], text, text),
    "ps": parse_processes,
    "getprop": parse_facts,
    "maps": parse_maps,
    "linker": lambda text: list(parse_listed(text)),
    "agent": lambda text: reserved(1, 0, text, text),
    "agent's refusal": lambda text: reserved(1, 1, text, text),
    "package": check_package,
}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    signal.alarm(_HANG_S)
    yield
    signal.alarm(0)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", HOSTILE)
def test_is_read_in_time_or_refused_in_a_line(reader: str, text: str) -> None:
    try:
        READERS[reader](HOSTILE[text])
    except MemleakError as error:
        line = str(error)
        assert len(line) < 1000 and line.isprintable()


@pytest.mark.parametrize("text", HOSTILE)
def test_a_status_is_refused_as_what_it_is(text: str) -> None:
    with pytest.raises(ValueError, match="no /proc/PID/status"):
        parse_status(HOSTILE[text])


def test_mappings_lie_where_addresses_are() -> None:
    for text in HOSTILE.values():
        for one in parse_maps(text):
            assert 0 <= one.start < one.end <= 1 << 64 and 0 <= one.offset < 1 << 64


def test_the_package_is_found_among_it() -> None:
    text = (
        HOSTILE["newlines"] + _PACKAGE + "    appId=10123\n    flags=[ DEBUGGABLE ]\n" + HOSTILE["newlines"]
    )
    app = parse_app("com.example.app", 10, ["/x"], text, "uid=10123")
    assert (app.uid, app.is_debuggable) == (1_010_123, True)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), (b"17", 17), ("9" * 19, 10**19 - 1), ("9" * 20, None), ("", None), ("-1", None), ("²", None), ("١", None), (b"\xff", None), ("1 ", None), ("1\n", None)],
)  # fmt: skip
def test_decimal(text: str | bytes, number: int | None) -> None:
    assert decimal(text) == number


def test_printable_is_short() -> None:
    assert all(len(one_line(text)) <= 300 and one_line(text).isprintable() for text in HOSTILE.values())
