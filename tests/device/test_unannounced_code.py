"""Code that came without the linker's word (bionic's linker says none): known from its first allocation on."""

from __future__ import annotations

import subprocess
from pathlib import Path

from elftools.elf.elffile import ELFFile

from tests.support.workloads import FLAGS, functions, run

FOLDER = Path(__file__).parent
TIMES, THREADS, BYTES = 400, 6, 1237


def offset_of(library: Path, function: str) -> int:
    with library.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym")
        return int(symbols.get_symbol_by_name(function)[0]["st_value"])


def test_every_thread_that_meets_it_at_once(tmp_path: Path) -> None:
    """Who finds that another thread read the maps meanwhile names its stack by them, not by those it had before."""
    library, program = tmp_path / "libunannounced.so", tmp_path / "unannounced_code"
    one_segment = ["-shared", "-fPIC", "-nostdlib", "-Wl,-z,noseparate-code"]
    subprocess.run(["cc", *FLAGS, *one_segment, "-o", library, FOLDER / "unannounced_library.c"], check=True)
    subprocess.run(["cc", *FLAGS, "-pthread", "-o", program, FOLDER / "unannounced_code.c"], check=True)
    words = (program, library, str(offset_of(library, "take")), str(TIMES))
    result = run("preload", tmp_path, "--", *words)
    assert result.report["target"]["exit_status"] == 0
    held = {True: 0, False: 0}
    for site in result.sites():
        if site["inuse_space"] == BYTES * site["inuse_objects"]:
            held["take" in functions(site) and site["end"] == "ROOT"] += site["inuse_objects"]
    assert held == {True: TIMES * THREADS, False: 0}
