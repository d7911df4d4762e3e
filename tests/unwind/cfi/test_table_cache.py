"""Compiled tables on disk: what comes back is what went in, or nothing."""

import os
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind import Module
from memleak_android.unwind.arch.x86_64 import ARCH
from memleak_android.unwind.cfi import table_cache
from memleak_android.unwind.cfi.compiled import compile_table
from memleak_android.unwind.cfi.rules import UnwindRow
from memleak_android.unwind.cfi.table_cache import TableCache, decode_entry, encode_entry, source_digest
from memleak_android.unwind.elf_image import ElfImage
from tests.support.builders.cfi_assembler import block, op
from tests.support.builders.small_library import CODE_VADDR, FUNCTION, filled

LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")
DIGEST = bytes(range(32))


def tiny(offset: int = 16) -> Module:
    return Module.from_bytes(filled([[op(0x0E, offset)], [op(0x0E, offset + 8)], None]))


def entry() -> bytes:
    module = tiny()
    data = encode_entry(compile_table(ARCH, module.table.sources), DIGEST)
    assert data is not None
    return data


def load(cache: TableCache, module: Module) -> bool:
    """Whether there is a good entry, from which the module then takes its rows."""
    module.table.compile_with(cache.find(module))
    return module.table.compiled is not None


def store(cache: TableCache, module: Module) -> bool:
    """Whether the rows that the module takes are kept, too."""
    module.table.compile_with(cache.obtain(module))
    return cache.find(module) is not None


def test_round_trip(tmp_path: Path) -> None:
    if not LIBC.exists():
        pytest.skip(f"{LIBC} is not on this machine")
    cache = TableCache(tmp_path / "cache")
    first, second, plain = (Module.from_path(LIBC) for _ in range(3))
    assert not load(cache, first)
    assert store(cache, first) and load(cache, second)
    text = plain.section(".text")
    assert text is not None
    vaddrs = np.arange(text.vaddr, text.vaddr + text.size, 7, dtype=np.uint64)
    found = [
        [m.table.rows[i] if i >= 0 else i for i in m.table.row_ids(vaddrs)] for m in (first, second, plain)
    ]
    assert found[0] == found[1] == found[2]
    (path,) = (tmp_path / "cache").iterdir()
    assert path.name.startswith(plain.build_id) and path.stat().st_mode & 0o077 == 0


def test_the_rules_of_a_linkage_table_come_back_without_the_file(tmp_path: Path) -> None:
    """The one expression in every file: its sources are not even opened for it."""
    plt = op(0x0F, block(b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22"))
    wanted, stored, loaded = (Module.from_bytes(filled([[plt], [op(0x0E, 24)], None])) for _ in range(3))
    cache = TableCache(tmp_path)
    assert store(cache, stored) and load(cache, loaded)
    vaddrs = np.arange(CODE_VADDR, CODE_VADDR + 2 * FUNCTION, 5, dtype=np.uint64)
    rows = [[m.table.rows[i] for i in m.table.row_ids(vaddrs).tolist()] for m in (wanted, stored, loaded)]
    assert rows[0] == rows[1] == rows[2] and rows[0][0].cfa_expression
    assert not loaded.table._sources


def test_another_file_with_the_same_build_id_gets_nothing(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    ours, forged = tiny(16), tiny(64)
    assert ours.build_id == forged.build_id
    assert store(cache, ours) and not load(cache, forged)
    assert source_digest(ours) == source_digest(tiny(16)) != source_digest(forged)


def test_a_section_that_many_headers_name_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """65,535 headers of one large section would make a file of some MB cost hours."""
    hashed: list[int] = []

    class Counted:
        def __init__(self, data: bytes) -> None:
            self.update(data)

        def update(self, data: bytes | memoryview) -> None:
            hashed.append(len(data))

        def digest(self) -> bytes:
            return bytes(32)

    data = Path("/bin/ls").read_bytes()
    image = ElfImage(memoryview(data), "ls")
    (frame,) = (section for section in image.sections if section.name == ".eh_frame")
    shoff, shentsize, shnum = int.from_bytes(data[40:48], "little"), data[58], data[60]
    headers = data[shoff : shoff + shentsize * shnum]
    at = shentsize * image.sections.index(frame)
    copies = 1000 * headers[at : at + shentsize]
    changed = bytearray(data) + headers + copies
    changed[40:48] = len(data).to_bytes(8, "little")
    changed[60:62] = (shnum + 1000).to_bytes(2, "little")
    monkeypatch.setattr(table_cache.hashlib, "sha256", Counted)
    many = ElfImage(memoryview(bytes(changed)), "ls")
    assert len(many.sections) == len(image.sections) + 1000
    source_digest(many)
    assert hashed.count(frame.size) == 1


def test_damaged_entries_are_none(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    assert store(cache, tiny())
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 0x10]) + whole[i + 1 :])
        assert not load(cache, tiny()), i
    for i in range(len(whole)):
        path.write_bytes(whole[:i])
        assert not load(cache, tiny()), i
    path.write_bytes(whole + b"\0")
    assert not load(cache, tiny())
    path.write_bytes(whole)
    assert load(cache, tiny())


def test_a_read_only_cache_is_not_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    module = tiny()
    assert not store(TableCache(tmp_path / "file" / "cache"), module)
    row = module.table.row_at(CODE_VADDR)
    assert row is not None and row.cfa_offset == 16


def test_entries_are_not_read_through_links(tmp_path: Path) -> None:
    cache = TableCache(tmp_path)
    assert store(cache, tiny())
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert not load(cache, tiny())


def ask(module: Module, times: int) -> UnwindRow | None:
    rows = [module.table.row_at(CODE_VADDR) for _ in range(times)]
    assert all(row == rows[0] for row in rows)
    return rows[0]


def test_rows_are_compiled_and_kept_once_that_pays(tmp_path: Path) -> None:
    cache, module = TableCache(tmp_path / "cache"), tiny()
    cache.serve(module)
    ask(module, 2)
    assert module.table.compiled is None and not cache.folder.exists()
    assert ask(module, 20) == tiny().table.row_at(CODE_VADDR)
    assert module.table.compiled is not None and len(list(cache.folder.iterdir())) == 1


def test_an_entry_is_taken_before_much_is_decoded(tmp_path: Path) -> None:
    cache, module = TableCache(tmp_path), tiny()
    assert store(cache, tiny())
    cache.serve(module)
    assert ask(module, 1) == tiny().table.row_at(CODE_VADDR)
    assert module.table.compiled is not None


def test_a_large_file_is_not_compiled_for_a_few_stacks(tmp_path: Path) -> None:
    if not LIBC.exists():
        pytest.skip(f"{LIBC} is not on this machine")
    cache, module = TableCache(tmp_path / "cache"), Module.from_path(LIBC)
    cache.serve(module)
    text = module.section(".text")
    assert text is not None
    ask_vaddrs = np.arange(text.vaddr, text.vaddr + 50, dtype=np.uint64)
    module.table.row_ids(ask_vaddrs)
    assert module.table.compiled is None and not cache.folder.exists()


def test_the_entry_that_was_not_used_for_longest_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = TableCache(tmp_path)
    modules = [tiny(offset) for offset in (16, 32, 48)]
    for age, module in zip((300, 200), modules, strict=False):
        before = set(tmp_path.iterdir())
        assert store(cache, module)
        (path,) = set(tmp_path.iterdir()) - before
        os.utime(path, (time.time() - age,) * 2)
    assert load(cache, tiny(16))  # the older one, which makes it the younger one
    monkeypatch.setattr(table_cache, "_FOLDER_MAX", 2 * path.stat().st_size)
    assert store(cache, modules[2])
    assert [load(cache, tiny(offset)) for offset in (16, 32, 48)] == [True, False, True]


def test_what_a_killed_writer_left_goes(tmp_path: Path) -> None:
    for name, age in ((".unfinished-old", 7200), (".unfinished-new", 60)):
        (tmp_path / name).write_bytes(b"half an entry")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert store(TableCache(tmp_path), tiny())
    assert not (tmp_path / ".unfinished-old").exists() and (tmp_path / ".unfinished-new").exists()


def test_many_writers_at_once(tmp_path: Path) -> None:
    def store_and_load(i: int) -> bool:
        return store(TableCache(tmp_path), tiny()) and load(TableCache(tmp_path), tiny())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(store_and_load, range(40)))
    assert len(list(tmp_path.iterdir())) == 1


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_lying_entries_with_good_checksums_do_no_harm(changes: list[tuple[int, int]]) -> None:
    """A writer of the folder can forge rows, but nothing else."""
    data = bytearray(entry())
    for at, byte in changes:
        data[12 + at % (len(data) - 12)] = byte
    data[12:16] = bytes(4)
    header, rest = data[: table_cache._HEADER.size], bytes(data[table_cache._HEADER.size :])
    header[12:16] = struct.pack("<I", zlib.crc32(rest, zlib.crc32(header)))
    table = decode_entry(bytes(header) + rest, DIGEST)
    if table is not None:
        module = tiny()
        module.table.compile_with(table)
        module.table.row_ids(np.arange(CODE_VADDR - 3, CODE_VADDR + 3 * FUNCTION, 3, dtype=np.uint64))
