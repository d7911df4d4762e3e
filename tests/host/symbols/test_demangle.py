"""Demangling, and names that must not be demangled."""

from __future__ import annotations

from memleak_android.host.symbols.demangle import demangle


def test_cxx_rust_and_plain_names() -> None:
    assert demangle("_Znwm") == "operator new(unsigned long)"
    assert demangle("_ZN7planted5outerEm.cold") == "planted::outer(unsigned long) (.cold)"
    assert demangle("_RNvC6_123foo3bar") == "123foo::bar"
    assert demangle("malloc") == "malloc"


def test_broken_names_come_back() -> None:
    for name in ("_Z", "_ZN", "_R", "_Z\0", "_ZNK4fooE\udc80", "_ZTVN10__cxxabiv1"):
        assert demangle(name) == name


def test_a_name_that_unfolds_without_end_comes_back() -> None:
    back_references = "".join(f"S_I{r}{r}E" for r in ["S0_", *(f"S{i}_" for i in range(1, 10))] * 4)
    bomb = f"_Z1fSt4pairIiiE{back_references}"
    assert demangle(bomb) == bomb
