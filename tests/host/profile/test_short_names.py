"""Function names without what a reader does not look for."""

import pytest

from memleak_android.host.profile.short_names import short_name

STRING = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >"


@pytest.mark.parametrize(
    ("function", "short"),
    [
        (f"{STRING} Invoice::render() const", "Invoice::render"),
        (f"char* {STRING}::_M_create(unsigned long&, unsigned long)", "std::string::_M_create"),
        ("std::vector<int, std::allocator<int> >::push_back(int&&)", "std::vector::push_back"),
        ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda#1}::operator()"),
        ("(anonymous namespace)::f(int)", "{anonymous}::f"),
        ("Foo::operator<<(int)", "Foo::operator<<"),
        (f"{STRING} std::operator+<char, std::char_traits<char> >({STRING}&&, char const*)", "std::operator+"),
        ("bool std::operator==<char>(A const&, A const&)", "std::operator=="),
        ("std::operator<< <char>(A&, char)", "std::operator<<"),
        ("Foo::operator->() const", "Foo::operator->"),
        ("Foo::operator bool() const", "Foo::operator bool"),
        ("bool operator< <int>(A<int> const&, B)", "operator<"),
        ("alloc::raw_vec::RawVec<T,A>::grow_one", "alloc::raw_vec::RawVec::grow_one"),
        ("<alloc::vec::Vec<T> as core::clone::Clone>::clone", "<alloc::vec::Vec<T> as core::clone::Clone>::clone"),
        ("shop::run::h0123456789abcdef", "shop::run"),
        ("decode.isra.0", "decode"),
        ("serve.<locals>.<lambda>", "serve.<locals>.<lambda>"),
        ("odd<(", "odd<("),
        ("f>x", "f>x"),
        ("", ""),
    ],
)  # fmt: skip
def test_names(function: str, short: str) -> None:
    assert short_name(function) == short
