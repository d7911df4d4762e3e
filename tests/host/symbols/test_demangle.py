"""Demangling, and names that must not be demangled."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from memleak_android.host.symbols import demangle as demangling
from memleak_android.host.symbols.demangle import MAX_GROWTH, DemanglingProcess, demangle, demangle_all
from tests.support.builders.demangling_bombs import BOMBS, packs
from tests.test_structure import ROOT

MEASURED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
from memleak_android.host.symbols.demangle import MAX_GROWTH, demangle, _process
from tests.support.builders import demangling_bombs
bomb = getattr(demangling_bombs, sys.argv[1])
for size in (1, 2, 3, 5, 10, 16, 30, 60, 1000, 16000):
    name = bomb(size)
    assert len(demangle(name)) <= MAX_GROWTH * len(name), len(name)
    if len(name) > 20_000:
        break
assert demangle(bomb(1)) != bomb(1) or sys.argv[1] == "rust_enclosing_references"
_process.close()
peak_kb = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
print(max(peak_kb, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) >> 10)
"""
REFERRING = "_ZN2ns4NameC1EPKS0_", "ns::Name::Name(ns::Name const*)"
CXX = "_ZNK2ns1AIXngLi3EEJSsdEE1fESt6vectorIiSaIiEEPKcRFvicEM1BKFvSdEPFvzENSsC1E.cold"
RUST = "_RINvC7mycrate3bazINtC1a3BarlERShTlaEFUKCeEuKj4_E"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[DemanglingProcess]:
    made = DemanglingProcess()
    monkeypatch.setattr(demangling, "_process", made)
    yield made
    made.close()


def test_cxx_rust_and_plain_names() -> None:
    assert demangle("_Znwm") == "operator new(unsigned long)"
    assert demangle("_ZN7planted5outerEm.cold") == "planted::outer(unsigned long) (.cold)"
    assert demangle("_RNvC6_123foo3bar") == "123foo::bar"
    assert demangle("malloc") == "malloc"
    assert demangle(REFERRING[0]) == REFERRING[1]
    assert demangle("_RINvCs1_1a1fTllEBa_E") == "a::f::<(i32, i32), (i32, i32)>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (  # GCC's mangling of C++20, which LLVM's demangler refuses
            "_ZSt11make_sharedI3FooJiEESt10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES4_E4typeEEDpOT0_.cold",
            "std::shared_ptr<std::enable_if<!std::is_array<Foo>::value, Foo>::type> std::make_shared<Foo, int>(int&&) (.cold)",
        ),
        (
            "_ZN4core3ptr85drop_in_place$LT$std..rt..lang_start$LT$$LP$$RP$$GT$..$u7b$$u7b$closure$u7d$$u7d$$GT$17h0123456789abcdefE",
            "core::ptr::drop_in_place<std::rt::lang_start<()>::{{closure}}>",
        ),
        (
            "_ZN70_$LT$alloc..vec..Vec$LT$T$C$A$GT$$u20$as$u20$core..ops..drop..Drop$GT$4drop17h0123456789abcdefE.llvm.123",
            "<alloc::vec::Vec<T,A> as core::ops::drop::Drop>::drop",
        ),
        ("_ZN3foo3bar17h0123456789abcdefE.cold", "foo::bar (.cold)"),
        ("_ZN3foo6$u0$xy17h0123456789abcdefE", "foo::$u0$xy"),  # no character that can be shown
        (
            "_ZN\u00b23foo17h0123456789abcdefE",
            "_ZN\u00b23foo17h0123456789abcdefE",
        ),  # a digit that is no number
        ("_ZN3foo9bar17h0123456789abcdefE", "_ZN3foo9bar17h0123456789abcdefE"),  # lengths that do not fit
    ],
)
def test_names_that_llvm_alone_does_not_show(name: str, text: str) -> None:
    assert demangle(name) == text
    assert demangle_all([name] * demangling._MANY_NAMES) == [text] * demangling._MANY_NAMES


def test_broken_names_come_back() -> None:
    for name in (
        "_Z",
        "_ZN",
        "_R",
        "_Z\0",
        "_ZNK4fooE\udc80",
        "_ZTVN10__cxxabiv1",
        "_Z1fS_\0x",
        "_Z1f\udc80S_",
    ):
        assert demangle(name) == name


@pytest.mark.parametrize("bomb", [bomb.__name__ for bomb in BOMBS])
def test_memory_is_bounded(bomb: str) -> None:
    """The parent may occupy 512 MB; neither process fills 150."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, bomb], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150


def test_names_beside_a_bomb_are_demangled(process: DemanglingProcess) -> None:
    """By themselves or in the process, few or many."""
    for count in (1, demangling._MANY_NAMES):
        before = [REFERRING[0], "malloc", "_Z1fS_\0x", "_Znwm", "_Z1f\udc80S_"]
        after = [f"_ZN1A{len(str(i)) + 1}x{i}EPKS_" for i in range(count)]
        names = [*before, packs(9), *after]
        assert demangle_all(names) == [
            *(REFERRING[1], "malloc", "_Z1fS_\0x", "operator new(unsigned long)", "_Z1f\udc80S_", packs(9)),
            *(f"A::x{i}(A const*)" for i in range(count)),
        ]


def test_the_bombs_of_a_hostile_file_are_not_tried_for_ever(process: DemanglingProcess) -> None:
    bombs = [f"{packs(9)}.{i}" for i in range(100)]
    assert demangle_all(bombs) == bombs and not process._starts_left
    assert demangle(REFERRING[0]) == REFERRING[0] and demangle("_Znwm") == "operator new(unsigned long)"


def test_ctrl_c_neither_ends_the_process_nor_mixes_replies(
    process: DemanglingProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert demangle(REFERRING[0]) == REFERRING[1]
    assert process._process is not None and os.getpgid(process._process.pid) != os.getpgid(0)

    def interrupted(_: object) -> list[str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(demangling, "receive", interrupted)
        demangle("_Z1f1AS_")
    assert demangle(REFERRING[0]) == REFERRING[1]


def test_without_a_process_names_stay(process: DemanglingProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert demangle_all([REFERRING[0], "_Znwm"]) == [REFERRING[0], "operator new(unsigned long)"]


def test_what_is_demangled_here_grows_little() -> None:
    """Mutations of names without references: a part left out, another repeated."""
    chosen, n_demangled = random.Random(7), 0
    while n_demangled < 2_000:
        name = chosen.choice((CXX, RUST))
        start, n_left_out = chosen.randrange(2, len(name)), chosen.randrange(12)
        part = name[start : start + chosen.randrange(1, 12)] * chosen.randrange(1, 60)
        name = name[:start] + part + name[start + n_left_out :]
        if demangling._is_harmless(name):
            shown = demangle(name)
            assert len(shown) <= MAX_GROWTH * len(name), name
            n_demangled += shown != name
