"""Names, lines and inlined functions against binutils' addr2line and llvm-symbolizer."""

import lzma
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from memleak_android.host.profile.profile import SymbolClass
from memleak_android.host.symbols import line_table as symcache
from memleak_android.host.symbols.debug_files import Content, DebugFileSearch, SymbolFile
from memleak_android.host.symbols.symbolizer import ResolvedFrame, Symbolizer
from memleak_android.unwind.elf_headers import ElfSections
from tests.support.builders.symbol_elf import LOCAL, NOTYPE, ElfSymbol, write_elf
from tests.support.oracles.symbols import (
    INLINING_PROGRAM,
    FileModule,
    addr2line,
    compile_cxx,
    llvm_symbolizer,
    need,
    text_vaddrs,
)

LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")


@pytest.fixture(scope="module")
def fixed_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("symbols")
    return compile_cxx(INLINING_PROGRAM, folder / "fixed", "-no-pie", "-fno-pie")


def resolve(path: Path, vaddrs: list[int], *symbol_dirs: Path) -> list[tuple[ResolvedFrame, ...]]:
    search = DebugFileSearch(symbol_dirs)
    return Symbolizer(search=search).resolve(FileModule.open(path), np.array(vaddrs, np.uint64))


def nm_vaddr(path: Path, name: str) -> int:
    listing = subprocess.run([need("nm"), "-C", str(path)], capture_output=True, text=True, check=True)
    return next(int(line.split()[0], 16) for line in listing.stdout.splitlines() if line.endswith(f" {name}"))


def test_what_symbolic_borrows_outlives_the_archive(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps no reference to what it parses; an unreferenced copy crashed the interpreter."""
    ended: list[bool] = []

    class Copy(bytes):
        def __del__(self) -> None:
            ended.append(True)

    from_bytes = symcache.symbolic.Archive.from_bytes

    def parse(data: bytes) -> object:
        archive = from_bytes(bytes_of_the_file)  # kept here: the test is to fail, not to crash
        objects = archive.iter_objects
        archive.iter_objects = lambda: objects() if not ended else pytest.fail("the copy is gone")
        return archive

    bytes_of_the_file = program.read_bytes()
    monkeypatch.setattr(symcache, "_as_bytes", lambda data: Copy(data))
    monkeypatch.setattr(symcache.symbolic.Archive, "from_bytes", parse)
    file = SymbolFile(None, ElfSections(memoryview(bytearray(bytes_of_the_file))), Content.DEBUG_INFO)
    assert symcache.load_line_table(file, None) is not None
    assert ended


@pytest.mark.parametrize("which", ["program", "fixed_program"])
def test_inlined_chain_ends_in_the_function_with_code(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    start = nm_vaddr(path, "planted::outer(unsigned long)")
    chains = resolve(path, list(range(start, start + 9)))
    deepest = max(chains, key=len)
    # g++ gives static functions that are only inlined no linkage name: DWARF holds the bare one.
    assert [(f.function, f.line, f.inlined) for f in deepest] == [
        ("innermost", 14, True),
        ("middle", 18, True),
        ("planted::outer(unsigned long)", 22, False),
    ]
    assert [f.offset for f in deepest[:-1]] == [0, 0]
    assert [chain[-1].offset for chain in chains] == list(range(9))


def assert_agree(
    ours: list[tuple[ResolvedFrame, ...]], theirs: list[list[tuple[str, int]]], names: bool, share: float
) -> None:
    assert len(ours) == len(theirs)
    same = 0
    for chain, oracle in zip(ours, theirs, strict=True):
        lines = [f.line or 0 for f in chain] == [line for _, line in oracle]
        inlined = [f.function for f in chain[:-1]] == [name for name, _ in oracle[:-1]]
        same += lines and (inlined or not names) and len(chain) == len(oracle)
    assert same / len(ours) >= share, f"{same} of {len(ours)}"


@pytest.mark.parametrize("which", ["program", "fixed_program"])
def test_whole_program_agrees_with_llvm_symbolizer(which: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(which)
    vaddrs = list(text_vaddrs(path))[::3]
    assert_agree(resolve(path, vaddrs), llvm_symbolizer(path, vaddrs), names=False, share=0.98)


def test_whole_program_agrees_with_addr2line(program: Path) -> None:
    vaddrs = list(text_vaddrs(program))[::3]
    assert_agree(resolve(program, vaddrs), addr2line(program, vaddrs), names=False, share=0.98)


def test_libc_by_its_separate_debug_file(tmp_path: Path) -> None:
    module = FileModule.open(LIBC)
    debug = Path(f"/usr/lib/debug/.build-id/{module.build_id[:2]}/{module.build_id[2:]}.debug")
    if not debug.exists():
        pytest.skip("libc6-dbg is not installed")
    generator = np.random.default_rng(23)
    text = text_vaddrs(LIBC)
    vaddrs = sorted(int(v) for v in generator.integers(text.start, text.stop, 2003))
    symbolizer = Symbolizer(cache_dir=tmp_path)
    ours = symbolizer.resolve(module, np.array(vaddrs, np.uint64))
    assert symbolizer.symbol_class(module) is SymbolClass.LINES
    assert_agree(ours, addr2line(debug, vaddrs), names=True, share=0.97)


def test_a_file_of_another_build_is_refused_with_a_note(stripped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "symbols"
    folder.mkdir()
    other = compile_cxx(INLINING_PROGRAM, folder / "program", "-DOTHER", "-O1")
    module = FileModule.open(stripped)
    symbolizer = Symbolizer([folder])
    assert symbolizer.symbol_class(module) is not SymbolClass.LINES
    other_id = FileModule.open(other).build_id
    assert symbolizer.notes == (f"{other} has build-id {other_id}, program has {module.build_id}; not used",)


@pytest.mark.parametrize("version", [4, 5])
def test_split_debug_information_is_said(version: int, tmp_path: Path) -> None:
    """Lines in .dwo files are not read: the module has names, and a note says why no more."""
    path = compile_cxx(INLINING_PROGRAM, tmp_path / "split", "-gsplit-dwarf", f"-gdwarf-{version}")
    symbolizer, module = Symbolizer(), FileModule.open(path)
    (chain,) = symbolizer.resolve(module, np.array([nm_vaddr(path, "main")], np.uint64))
    assert [frame.function for frame in chain] == ["main"]
    assert symbolizer.symbol_class(module) is SymbolClass.NAMES
    assert [note.partition(":")[0] for note in symbolizer.notes if "-gsplit-dwarf" in note] == ["split"]


def test_gnu_debugdata_names_what_dynsym_does_not(program: Path, tmp_path: Path) -> None:
    objcopy, packed, small = need("objcopy"), tmp_path / "program", tmp_path / "small"
    subprocess.run([objcopy, "--strip-debug", program, small], check=True)
    (tmp_path / "small.xz").write_bytes(lzma.compress(small.read_bytes()))
    add = f"--add-section=.gnu_debugdata={tmp_path / 'small.xz'}"
    subprocess.run([objcopy, "--strip-all", program, packed], check=True)
    subprocess.run([objcopy, add, packed], check=True)
    vaddr = nm_vaddr(program, "planted::outer(unsigned long)") + 5
    assert resolve(packed, [vaddr]) == [
        (ResolvedFrame("planted::outer(unsigned long)", 5, None, None, False),)
    ]


def test_cache_is_used_and_a_damaged_one_made_anew(program: Path, stripped: Path, tmp_path: Path) -> None:
    module = FileModule.open(program)
    vaddrs = np.array(text_vaddrs(program)[::7], np.uint64)
    first = Symbolizer(cache_dir=tmp_path).resolve(module, vaddrs)
    (cache,) = tmp_path.iterdir()
    assert cache.name.startswith(f"{module.build_id}-") and cache.suffix == ".symcache"
    good = cache.read_bytes()
    for damaged in (b"", good[:100], good[:-1], good[:500] + bytes([good[500] ^ 1]) + good[501:]):
        cache.write_bytes(damaged)
        assert Symbolizer(cache_dir=tmp_path).resolve(module, vaddrs) == first
        assert cache.read_bytes() == good
    by_folder = Symbolizer([program], cache_dir=tmp_path).resolve(FileModule.open(stripped), vaddrs)
    assert [[f.line for f in c] for c in by_folder] == [[f.line for f in c] for c in first]
    assert list(tmp_path.iterdir()) == [cache]  # the same file, the same entry


def test_the_cache_gives_a_module_nothing_of_another_that_bears_its_build_id(
    program: Path, tmp_path: Path
) -> None:
    """A hostile target names functions and lines as it likes, also under the build-id of another program."""
    module, cache = FileModule.open(program), tmp_path / "cache"
    vaddrs = np.array(text_vaddrs(program)[::7], np.uint64)
    own = Symbolizer().resolve(module, vaddrs)
    forged = compile_cxx(INLINING_PROGRAM.replace("innermost", "harmless"), tmp_path / "forged")
    data = forged.read_bytes()
    wanted, own_id = bytes.fromhex(module.build_id), bytes.fromhex(FileModule.open(forged).build_id)
    assert wanted != own_id and data.count(own_id) == 1
    forged.write_bytes(data.replace(own_id, wanted))
    hostile = FileModule.open(forged)
    assert hostile.build_id == module.build_id
    assert Symbolizer(cache_dir=cache).symbol_class(hostile) is SymbolClass.LINES
    assert Symbolizer(cache_dir=cache).resolve(module, vaddrs) == own
    assert len(list(cache.iterdir())) == 2


def test_without_its_debug_file_a_module_has_no_lines_from_the_cache(
    program: Path, stripped: Path, tmp_path: Path
) -> None:
    assert Symbolizer(cache_dir=tmp_path).symbol_class(FileModule.open(program)) is SymbolClass.LINES
    bare = Symbolizer(cache_dir=tmp_path)
    assert bare.symbol_class(FileModule.open(stripped)) is not SymbolClass.LINES


def test_unwritable_cache_changes_nothing(program: Path) -> None:
    vaddrs = np.array(text_vaddrs(program)[:3], np.uint64)
    module = FileModule.open(program)
    blocked = Symbolizer(cache_dir=Path("/proc/nowhere"))
    assert blocked.resolve(module, vaddrs) == Symbolizer().resolve(module, vaddrs)


def test_without_symbolic_the_names_stay(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symcache, "symbolic", None)
    module = FileModule.open(program)
    symbolizer = Symbolizer()
    vaddr = nm_vaddr(program, "main")
    (chain,) = symbolizer.resolve(module, np.array([vaddr], np.uint64))
    assert chain == (ResolvedFrame("main", 0, None, None, False),)
    assert symbolizer.symbol_class(module) is SymbolClass.NAMES


def test_damaged_files_cost_names_never_an_error(program: Path, tmp_path: Path) -> None:
    good = program.read_bytes()
    generator = np.random.default_rng(7)
    vaddrs = np.array([0, 0x1000, 0x1234, 2**64 - 1], np.uint64)
    for round_ in range(60):
        data = bytearray(good[: int(generator.integers(0, len(good)))] if round_ % 3 == 0 else good)
        for _ in range(30 if round_ % 3 else 0):
            data[int(generator.integers(0, 4096 if round_ % 3 == 1 else len(data)))] = generator.integers(256)
        for _ in range(10 if round_ % 3 == 2 else 0):
            data[len(data) - 1 - int(generator.integers(0, 2000))] = generator.integers(256)
        module = FileModule(str(tmp_path / "gone"), "", memoryview(bytes(data)))
        assert all(len(chain) >= 1 for chain in Symbolizer().resolve(module, vaddrs))


def test_names_of_a_stripped_program_come_from_the_symbols_folder(
    program: Path, stripped: Path, tmp_path: Path
) -> None:
    """From a debug file deep in it, beside files that are none."""
    folder = tmp_path / "symbols" / "deep"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder)
    (folder / "dead").symlink_to(tmp_path / "nowhere")
    (folder / "notes.txt").write_text("no ELF file")
    subprocess.run([need("objcopy"), "--only-keep-debug", program, folder / "some.debug"], check=True)
    vaddrs = np.array([nm_vaddr(program, "planted::outer(unsigned long)") + 1], np.uint64)
    without, with_folder = Symbolizer(), Symbolizer([tmp_path / "symbols", tmp_path / "absent"])
    module = FileModule.open(stripped)
    assert without.resolve(module, vaddrs) == [(ResolvedFrame("", 0, None, None, False),)]
    assert with_folder.resolve(module, vaddrs) == resolve(program, vaddrs.tolist())
    assert with_folder.symbol_class(module) is SymbolClass.LINES
    assert without.symbol_class(module) is not SymbolClass.LINES
    assert with_folder.notes == (f"no folder or file {tmp_path / 'absent'} (--symbols)",)


def test_two_files_of_one_path_without_build_ids(program: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    command = [need("objcopy"), "--remove-section=.note.gnu.build-id", program, bare]
    subprocess.run(command, check=True)
    vaddrs = np.array([nm_vaddr(program, "main")], np.uint64)
    symbolizer = Symbolizer()
    first, second = FileModule.open(bare), FileModule(str(bare), "", memoryview(b""))
    assert symbolizer.resolve(first, vaddrs)[0][-1].function == "main"
    assert symbolizer.symbol_class(second) is SymbolClass.NONE


def test_return_address_into_the_signal_trampoline() -> None:
    symbols = [ElfSymbol("before", 0x1000, 8), ElfSymbol("__restore_rt", 0x1010, 0, NOTYPE, LOCAL)]
    module = FileModule("/lib/libc.so.6", "", memoryview(write_elf(symbols)))
    (at_call,), (inside,), (gap,) = Symbolizer().resolve(
        module, np.array([0x100F, 0x1012, 0x100D], np.uint64)
    )
    assert (at_call.function, at_call.offset) == ("__restore_rt", -1)
    assert (inside.function, inside.offset) == ("__restore_rt", 2)
    assert gap.function == ""
