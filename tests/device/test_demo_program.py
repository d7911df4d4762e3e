"""The demo program against its own table, with valgrind as the judge; and its shape: stripped, symbols beside it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.oracles.valgrind import Record, in_use_at_exit

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "host" / "prebuilt" / "x86_64"
TABLE = json.loads((ROOT / "device" / "demo" / "demo.json").read_text())
LEAKS = {leak["name"]: leak for leak in TABLE["leaks"]}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    if not (DEMO / "memleak-demo").exists():
        pytest.skip("the demo program is not built (make device)")
    folder = tmp_path_factory.mktemp("valgrind")
    # Inlined functions have frames, too.
    return in_use_at_exit([DEMO / "memleak-demo", "0.05"], os.environ, folder, "--read-inline-info=yes")


def names_of(record: Record) -> list[str]:
    """Functions, innermost first, without arguments."""
    return [frame.function.split("(")[0] for frame in record.frames]


def holds(chain: list[str], functions: list[str]) -> bool:
    """Whether the names of `functions` occur in this order; valgrind writes inlined ones without their scope."""
    rest = iter(chain)
    return all(any(name.split("::")[-1] == own.split("::")[-1] for own in rest) for name in functions)


def test_table_adds_up() -> None:
    assert TABLE["total_bytes"] == sum(leak["bytes"] for leak in LEAKS.values())
    assert TABLE["total_objects"] == sum(leak["objects"] for leak in LEAKS.values())
    for leak in LEAKS.values():
        assert leak["objects"] * leak["size"] == leak["bytes"]
        assert len(leak["functions"]) + (leak["root"] == "thread") >= 5


@pytest.mark.parametrize("name", LEAKS)
def test_planted_leak_has_one_stack_with_its_chain(records: list[Record], name: str) -> None:
    leak = LEAKS[name]
    root = ["start_thread"] if leak["root"] == "thread" else []
    found = [record for record in records if holds(names_of(record), [*leak["functions"], *root])]
    # A block whose address is left over in a register or on a stack has a record of its own, with the same stack.
    assert len({tuple(names_of(record)) for record in found}) == 1
    assert (sum(r.blocks for r in found), sum(r.bytes for r in found)) == (leak["objects"], leak["bytes"])


def test_nothing_else_but_the_runtime_is_held(records: list[Record]) -> None:
    chains = [leak["functions"] for leak in LEAKS.values()]
    others = [record for record in records if not any(holds(names_of(record), chain) for chain in chains)]
    for record in others:
        of_runtime = {
            "allocate_dtv",
            "_dl_allocate_tls",
            "call_init",
            "_dl_init",
        }  # threads; starts of libraries
        assert of_runtime & set(names_of(record)), record


def test_stripped_with_its_symbols_in_a_file_beside_it() -> None:
    if shutil.which("readelf") is None or not (DEMO / "memleak-demo").exists():
        pytest.skip("readelf is not installed, or the demo program is not built (make device)")
    for name in ("memleak-demo", "libmemleak-demo.so"):
        sections = {path: read_elf("-SW", path) for path in (DEMO / name, DEMO / f"{name}.debug")}
        assert ".symtab" not in sections[DEMO / name] and ".debug_info" not in sections[DEMO / name]
        assert ".gnu_debuglink" in sections[DEMO / name] and ".eh_frame" in sections[DEMO / name]
        whole = sections[DEMO / f"{name}.debug"]
        assert ".symtab" in whole and ".debug_info" in whole
        notes = [line.strip() for path in sections for line in read_elf("-n", path).splitlines()]
        assert len({line for line in notes if "Build ID" in line}) == 1


def read_elf(option: str, path: Path) -> str:
    return subprocess.run(["readelf", option, path], text=True, capture_output=True, check=True).stdout
