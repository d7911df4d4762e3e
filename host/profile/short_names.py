"""Function names as people say them: without arguments, template arguments, clones and the C++ library's spelling."""

import re
from functools import lru_cache

from memleak_android.host.profile.site_id import stable_function

_STRING = re.compile(r"std::(__cxx11::|__1::|__ndk1::)?basic_string<char(, [^<>]*(<char>)? ?)*>")
_INLINE_NAMESPACE = re.compile(r"std::(__cxx11|__1|__ndk1)::")
_OPERATOR = re.compile(
    r"operator(\(\)|\[\]|->\*?|<=>|(<<|>>|[-+*/%^&|=!<>])=|<<|>>|\+\+|--|&&|\|\||[-+*/%^&|~!=<>,]| [^(]*)"
)
_OF_PYTHON = re.compile(r"<(locals|lambda|module|listcomp|dictcomp|setcomp|genexpr)>")  # PEP 3155
_QUALIFIERS = re.compile(r"( const| volatile| &&?| noexcept)+$")


@lru_cache(maxsize=65_536)
def short_name(function: str) -> str:
    """`Invoice::render` of `std::string Invoice<int>::render(int) const`; nested functions keep their names."""
    if _OF_PYTHON.search(function):
        return function
    name = _INLINE_NAMESPACE.sub("std::", _STRING.sub("std::string", stable_function(function)))
    name = name.replace("[abi:cxx11]", "").replace("(anonymous namespace)", "{anonymous}")
    kept = _without_brackets(_QUALIFIERS.sub("", name)).strip()
    if kept.startswith("::"):  # Rust's `<Vec<T> as Clone>::clone`
        return name
    before, operator, symbol = kept.partition("operator")
    return f"{before.split(' ')[-1]}{operator}{symbol}" or name


def _without_brackets(name: str) -> str:
    """Without what is in parentheses and angle brackets; unchanged where they do not match."""
    kept, depth, at = list[str](), 0, 0
    while at < len(name):
        found = None if depth else _OPERATOR.match(name, at)
        if found:
            kept.append(found[0])
            at = found.end()
            continue
        depth += (name[at] in "<(") - (name[at] in ">)")
        if depth < 0:
            return name
        if not depth and name[at] not in ">)":
            kept.append(name[at])
        at += 1
    return name if depth else "".join(kept)
