"""Spellings that match a demangled name."""

import pytest

from memleak_android.host.symbols.debug_files import DebugFileSearch
from memleak_android.host.symbols.demangle import demangle
from memleak_android.host.tracers.functions.function_table import FunctionTable
from memleak_android.host.tracers.functions.written_names import is_called, written_names
from tests.support.snoop_runs import snooped_program


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
