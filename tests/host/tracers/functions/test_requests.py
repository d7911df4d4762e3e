"""Syntax of function requests and group files, and the line for each error."""

from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.snoop.filters import parse_filter
from memleak_android.host.snoop.formats import parse_call_format
from memleak_android.host.symbols.debug_files import DebugFileSearch
from memleak_android.host.symbols.demangle import demangle
from memleak_android.host.tracers.functions.requests import FunctionRequest, parse_request, read_group_file
from memleak_android.host.tracers.functions.selection import FunctionTable
from memleak_android.host.tracers.functions.written_names import is_called, written_names
from memleak_android.host.wire.calls import CaptureKind, Comparison
from tests.support.snoop_runs import snooped_program


@pytest.mark.parametrize(
    ("text", "library", "symbol"),
    [
        ("libc.so.6:malloc", "libc.so.6", "malloc"),
        ("main", "", "main"),
        ("ns::Class::method", "", "ns::Class::method"),
        ("libfoo.so:ns::Class::method(int)", "libfoo.so", "ns::Class::method(int)"),
        ("/usr/lib/a:b", "/usr/lib/a", "b"),
        ("app:+0x12aB", "app", "+0x12aB"),
    ],
)
def test_requests(text: str, library: str, symbol: str) -> None:
    assert parse_request(text) == FunctionRequest(library, symbol)
    assert parse_request("app:+0x12aB").file_offset == 0x12AB
    assert parse_request("libc:mem*").is_glob and not parse_request("operator*").is_glob


@pytest.mark.parametrize(
    ("parse", "text", "line"),
    [
        (parse_request, "libc:", "'libc:' names no function; write LIB:FUNCTION, or FUNCTION of the program itself"),
        (parse_request, "app:+12", "'app:+12': +12 is not an offset in a file; write +0x and hexadecimal digits"),
        (parse_call_format, "int,float", "'float' is not a format; write int, iN, uint, uN, hex, str, strN, bufN, fd or -"),
        (parse_call_format, "int," * 6 + "int", "'int,int,int,int,int,int,int' has 7 arguments; the first 6 are read"),
        (parse_call_format, "buf", "buf without a size; write bufN for N bytes, such as buf64"),
        (parse_call_format, "buf2000", "'buf2000' reads too much; 991 bytes at most"),
        (parse_call_format, "buf600,buf600", "'buf600,buf600' reads too much; 1008 bytes of a call at most"),
        (parse_call_format, "str,str,str,str,str", "'str,str,str,str,str' reads memory of 5 values; name 4 at most"),
        (parse_filter, "arg6>1", "'arg6>1': there is no arg6; arg0 to arg5 are read"),
        (parse_filter, "size>1", "'size>1' is not a filter; write arg0>4096, or FUNCTION:arg0>4096; == != < <= > >= &"),
        (parse_filter, f"arg0>{2**64}", f"'arg0>{2**64}': {2**64} has more than 64 bits"),
    ],
)  # fmt: skip
def test_what_is_not_understood(parse: Callable[[str], object], text: str, line: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert str(raised.value) == line


def test_formats_say_what_is_to_be_read() -> None:
    made = parse_call_format("str,hex,buf64,fd->str9")
    assert made.captures() == [
        (0, CaptureKind.STRING, 129),
        (2, CaptureKind.BYTES, 64),
        (3, CaptureKind.PATH, 0),
        (6, CaptureKind.STRING, 10),
    ]


@pytest.mark.parametrize(
    ("word", "value", "captured", "shown"),
    [
        ("int", 2**64 - 5, None, "-5"),
        ("i32", 0xFFFFFFFF, None, "-1"),
        ("i32", 7 << 40 | 3, None, "3"),
        ("i8", 0x180, None, "-128"),
        ("u16", 0x1FFFF, None, "65535"),
        ("uint", 2**64 - 5, None, "18446744073709551611"),
        ("hex", 0, None, "0"),
        ("str", 1, "grüße\n".encode(), '"gr\\xc3\\xbc\\xc3\\x9fe\\n"'),
        ("str", 1, "grüße".encode(), '"grüße"'),
        ("str4", 1, b"abcd", '"abcd"…'),
        ("str", 0x10, OSError(14, ""), "0x10"),
        ("buf2", 1, b"\x00A", '"\\x00A"'),
        ("fd", 3, b"/dev/null", "3</dev/null>"),
        ("fd", 3, b"/tmp/a\x1b[2J\xff", "3</tmp/a?[2J\ufffd>"),
        ("fd", 2**64 - 1, None, "-1"),
    ],
)
def test_values(word: str, value: int, captured: bytes | OSError | None, shown: str) -> None:
    assert parse_call_format(word).arguments[0].shower()(value, captured) == shown


def test_filters() -> None:
    made = parse_filter("write*:arg2>=0x100")
    assert (made.functions, made.argument, made.comparison, made.value) == ("write*", 2, Comparison.GE, 256)


@pytest.mark.parametrize(
    ("words", "text", "comparison", "bits", "value"),
    [
        ("", "arg0 < -1", Comparison.LT + Comparison.SIGNED, 0, 2**64 - 1),
        ("", "arg0>0", Comparison.GT + Comparison.SIGNED, 0, 0),
        ("", "arg0==-1", Comparison.EQ + Comparison.SIGNED, 0, 2**64 - 1),
        ("", "arg0==0", Comparison.EQ, 64, 0),
        ("", "arg0>4096", Comparison.GT, 64, 4096),
        ("", "arg0&-8", Comparison.AND, 64, 2**64 - 8),
        ("i32", "arg0>4096", Comparison.GT + Comparison.SIGNED, 32, 4096),
        ("i32", "arg0==-1", Comparison.EQ, 32, 2**32 - 1),
        ("i8", "arg0!=0xff", Comparison.NE, 8, 255),
        ("int", "arg0>5", Comparison.GT + Comparison.SIGNED, 64, 5),
        ("u32", "arg0>0", Comparison.GT, 32, 0),
        ("uint", "arg0>0", Comparison.GT, 64, 0),
        ("fd", "arg0<0", Comparison.LT + Comparison.SIGNED, 32, 0),
        ("str", "arg0==-1", Comparison.EQ + Comparison.SIGNED, 0, 2**64 - 1),
    ],
)
def test_compared_numbers(words: str, text: str, comparison: int, bits: int, value: int) -> None:
    assert parse_filter(text).compared(parse_call_format(words)) == (comparison, bits, value)


def test_group_files(tmp_path: Path) -> None:
    file = tmp_path / "groups.toml"
    file.write_text(
        '[db]\npath = "libsqlite3.so.0"\nfunctions = ["sqlite3_step"]\nsymbols = { prepare = "sqlite3_prepare_v2" }\n'
        'arguments = { prepare = "hex,str" }\n[own]\nfunctions = ["main"]\n'
    )
    assert read_group_file(file) == [
        FunctionRequest("libsqlite3.so.0", "sqlite3_step"),
        FunctionRequest("libsqlite3.so.0", "sqlite3_prepare_v2", "prepare", "hex,str"),
        FunctionRequest("", "main"),
    ]


def test_the_shipped_example_is_one() -> None:
    requests = read_group_file(Path(__file__).resolve().parents[4] / "docs" / "examples" / "snoop-group.toml")
    assert len(requests) == 5
    for one in requests:
        parse_call_format(one.arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a\n", "is not TOML"),
        ("[a]\nfunktions = []\n", "[a]: unknown key funktions"),
        ("[a]\nfunctions = 3\n", "[a] is not understood"),
        ("a = 1\n", "[a] is not a table"),
        ("", "names no functions"),
    ],
)
def test_bad_group_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "groups.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_group_file(file)
    assert message in str(raised.value) and "\n" not in raised.value.message.replace("is not TOML", "")


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        ("ns::f(int)", ["ns::f(int)", "ns::f"]),
        ("ns::C::f(int, char) const", ["ns::C::f(int,char) const", "ns::C::f"]),
        (
            "int shop::scale<int, 3>(int)",
            ["int shop::scale<int,3>(int)", "int shop::scale<int,3>", "shop::scale<int,3>(int)", "shop::scale<int,3>",
             "shop::scale"],
        ),
        ("shop::Basket<int>::add(int const&)", ["shop::Basket<int>::add(int const&)", "shop::Basket<int>::add"]),
        ("shop::Basket<int>::operator bool() const", ["shop::Basket<int>::operator bool() const", "shop::Basket<int>::operator bool"]),
        ("bool ns::operator<<int>(int)", ["bool ns::operator<<int>(int)", "bool ns::operator<<int>", "ns::operator<<int>(int)", "ns::operator<<int>"]),
        ("ns::F::operator()(int)", ["ns::F::operator()(int)", "ns::F::operator()"]),
        ("(anonymous namespace)::f(int)", ["(anonymous namespace)::f(int)", "(anonymous namespace)::f"]),
        ("f(int) (.constprop.0)", ["f(int) (.constprop.0)", "f(int)", "f"]),
        ("std::map<int, std::pair<int, int> >::at(int)", ["std::map<int,std::pair<int,int> >::at(int)", "std::map<int,std::pair<int,int> >::at"]),
        ("(anonymous namespace)::counter", ["(anonymous namespace)::counter"]),
    ],
)  # fmt: skip
def test_what_people_write(shown: str, names: list[str]) -> None:
    assert written_names(shown) == names


@pytest.mark.parametrize(
    ("wanted", "is_glob", "found"),
    [
        ("shop::scale", False, {"int shop::scale<int, 3>(int)", "int shop::scale<long, 5>(long)"}),
        ("shop::scale<int,3>", False, {"int shop::scale<int, 3>(int)"}),
        ("shop::scale<*>", True, {"int shop::scale<int, 3>(int)", "int shop::scale<long, 5>(long)"}),
        ("shop::*", True, {"int shop::scale<int, 3>(int)", "int shop::scale<long, 5>(long)", "shop::Basket<long>::add(long const&)"}),
        ("shop::Basket<long>::add", False, {"shop::Basket<long>::add(long const&)"}),
    ],
)  # fmt: skip
def test_templates_are_found_by_the_names_in_their_source(
    wanted: str, is_glob: bool, found: set[str]
) -> None:
    table = FunctionTable(str(snooped_program("templates.cc")), DebugFileSearch(()))
    assert {demangle(one.name) for one in table.find(wanted, is_glob)} == found


def test_globs_of_options_mean_the_same_names() -> None:
    assert is_called("int shop::scale<int, 3>(int)", "shop::scale")
    assert is_called("int shop::scale<int, 3>(int)", "*scale<int, 3>*")
    assert not is_called("int shop::scale<int, 3>(int)", "scale")
