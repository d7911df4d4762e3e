"""Imports of the shim from its libc: nothing that bionic of Android 6 (API 23) lacks."""

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from tests.support.foreign_libc import ROOT, ForeignLibc, bionics, exports

SHIMS = sorted((ROOT / "host" / "prebuilt").glob("*/libmemleak.so"))

# "introduced=" in bionic's libc/libc.map.txt and libdl/libdl.map.txt; 9 where they name none: from the beginning.
BIONIC_SINCE = {
    "__errno": 9,
    "__register_atfork": 23,
    "__system_property_get": 9,
    "dl_iterate_phdr": 21,  # on arm; 9 elsewhere
    "dlsym": 9,
    "environ": 9,
    "getauxval": 18,
    "pthread_atfork": 12,
}
# Of others: the shim does without where they are missing.
OTHERS = {
    "__errno_location",
    "__libc_calloc",
    "__libc_free",
    "__libc_malloc",
    "__libc_memalign",
    "__libc_realloc",
    "__libc_single_threaded",
    # of CPython
    "PyBytes_Type",
    "PyCode_Type",
    "PyGILState_GetThisThreadState",
    "PyMem_Calloc",
    "PyMem_GetAllocator",
    "PyMem_SetAllocator",
    "PyType_Type",
    "PyUnicode_Type",
    "Py_GetVersion",
    "Py_IsFinalizing",
    "_Py_IsFinalizing",
    "_Py_MergeZeroLocalRefcount",
}


def imports(library: Path) -> dict[str, str]:
    """Name → binding of what a library leaves undefined."""
    with library.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {
            symbol.name: symbol["st_info"]["bind"]
            for symbol in table.iter_symbols()
            if symbol.name and symbol["st_shndx"] == "SHN_UNDEF"
        }


@pytest.mark.parametrize("shim", SHIMS, ids=lambda shim: shim.parent.name)
def test_the_shim_imports_what_api_23_has(shim: Path) -> None:
    found = imports(shim)
    assert "dlsym" in found
    assert set(found) <= set(BIONIC_SINCE) | OTHERS
    assert max(BIONIC_SINCE.values()) <= 23
    assert set(found.values()) == {"STB_WEAK"}, "where a name is missing the loader must not refuse the shim"


@pytest.mark.parametrize("shim", SHIMS, ids=lambda shim: shim.parent.name)
def test_the_shim_needs_no_library_and_no_thread_local_storage(shim: Path) -> None:
    with shim.open("rb") as file:
        elf = ELFFile(file)
        dynamic = elf.get_section_by_name(".dynamic")
        assert dynamic is not None
        tags = {tag.entry.d_tag for tag in dynamic.iter_tags()}  # type: ignore[attr-defined]
        segments = {segment["p_type"] for segment in elf.iter_segments()}
    assert not tags & {"DT_NEEDED", "DT_TEXTREL", "DT_RELR", "DT_VERNEED"}
    assert tags >= {"DT_HASH", "DT_GNU_HASH"}, "Android 5 knows the first alone, newer linkers the second"
    assert "PT_TLS" not in segments


@pytest.mark.parametrize("libc", bionics(), ids=lambda libc: libc.name)
def test_the_list_is_true_of_a_bionic(libc: ForeignLibc) -> None:
    if not libc.libc.exists():
        pytest.skip(f"{libc.libc} is not here: nothing to check the list with")
    found = exports(libc.libc)
    assert set(BIONIC_SINCE) <= found | exports(libc.libc.with_name("libdl.so"))
    assert not OTHERS & found
