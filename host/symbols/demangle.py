"""Demangles names of C++ (Itanium) and Rust; other names come back unchanged."""

import re

import pycxxfilt

# Substitutions (Itanium C++ ABI §5.1.10) repeat earlier parts: 215 characters can expand to 67 MB, 300 to more than
# any machine has. A name of length l with n of them expands to at most l * 3^(n/3) characters. Of 43,946
# names of libLLVM-14 and libstdc++, three exceed the limit and stay mangled.
SUBSTITUTION = re.compile(r"[ST][0-9A-Z]*_")
GROWTH_PER_SUBSTITUTION = 3 ** (1 / 3)
MAX_DEMANGLED_LENGTH = 1e8
MAX_MANGLED_LENGTH = 16_384


def demangle(name: str) -> str:
    """The demangled ELF symbol name, or the name itself."""
    if not name.startswith(("_Z", "_R", "__Z")) or len(name) > MAX_MANGLED_LENGTH or _unfolds_too_far(name):
        return name
    try:
        return pycxxfilt.demangle(name) or name
    except ValueError:
        return name


def _unfolds_too_far(name: str) -> bool:
    substitutions = min(len(SUBSTITUTION.findall(name)), 1_000)
    return len(name) * GROWTH_PER_SUBSTITUTION**substitutions > MAX_DEMANGLED_LENGTH
