"""Short mangled names that mean long ones, of several kinds; each function has a size."""

from collections.abc import Callable

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def base_62(number: int) -> str:
    """Rust RFC 2603: "_" is 0, "0_" is 1."""
    return f"{_digits(number - 1, 62)}_" if number else "_"


def sequence(number: int) -> str:
    """Itanium C++ ABI, <seq-id>: S_ is 0, S0_ is 1."""
    return f"{_digits(number - 1, 36).upper()}_" if number else "_"


def _digits(number: int, base: int) -> str:
    more = _digits(number // base, base) if number >= base else ""
    return more + _DIGITS[number % base]


def substitutions(levels: int) -> str:
    """Each template has the one before as both arguments: doubles with every level."""
    types, index = "1AIiiE", 1
    for _ in range(levels):
        types += f"S_I{'S' + sequence(index)}{'S' + sequence(index)}E"
        index += 1
    return f"_Z1f{types}"


def nested_substitutions(levels: int) -> str:
    """One reference a level doubles, too: beside the part that it refers to."""
    inner = "1AIiiE"
    for level in range(levels):
        inner = f"1AI{inner}S{sequence(levels + level + 1)}E"
    return f"_Z1f{inner}"


def packs(levels: int) -> str:
    """A pack of 20 within an expansion within one: times 20 with every level."""
    expansion = "DpT_"
    for _ in range(levels):
        expansion = f"Dp1AIT_{expansion}E"
    return f"_Z1fIJ{'i' * 20}EEv{expansion}"


def pack_expressions(levels: int) -> str:
    """As packs(), by expressions."""
    expansion = "spfp_"
    for _ in range(levels):
        expansion = f"spcl1gT_{expansion}E"
    return f"_Z1fIJ{'i' * 20}EEDTcl1g{expansion}EEDpT_"


def forward_references(levels: int) -> str:
    """A conversion's type refers to arguments that come after it, and these to the type."""
    types = "".join(f"T{sequence(i)}" for i in range(levels))
    back = "".join(f"S{sequence(i + 1)}" for i in range(levels))
    return f"_ZN1AcvF{types}EI{f'1BI{back}E' * levels}EEv"


def rust_back_references(levels: int) -> str:
    """Tuples of two references to the tuple before."""
    body, previous = "IC1aTlllE", 4
    for _ in range(levels):
        at = len(body)
        body += f"T{('B' + base_62(previous)) * 2}E"
        previous = at
    return f"_R{body}E"


def rust_enclosing_references(levels: int) -> str:
    """Tuples that refer to themselves, after references to tuples before."""
    body, starts = "IC1aTlllE", [4]
    for _ in range(levels):
        starts.append(len(body))
        body += "T" + "".join("B" + base_62(start) for start in starts[-3:] * 2) + "E"
    return f"_R{body}E"


def rust_binders(levels: int) -> str:
    """Function types for as many lifetimes as the name has characters: quadratic."""
    lifetimes = base_62(5 * levels)
    return f"_RIC1a{f'FG{lifetimes}Eu' * levels}E"


def cxx_nesting(levels: int) -> str:
    return f"_Z1f{'P' * levels}i"


def cxx_nested_expressions(levels: int) -> str:
    return f"_Z1fIX{'ng' * levels}Li1EEEvv"


def rust_nesting(levels: int) -> str:
    return f"_RIC1a{'R' * levels}lE"


BOMBS: tuple[Callable[[int], str], ...] = (
    substitutions,
    nested_substitutions,
    packs,
    pack_expressions,
    forward_references,
    rust_back_references,
    rust_enclosing_references,
    rust_binders,
    cxx_nesting,
    cxx_nested_expressions,
    rust_nesting,
)
