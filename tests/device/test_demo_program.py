"""The demo program against its own table, with valgrind as the judge; and its shape: stripped, symbols beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "host" / "prebuilt" / "x86_64"
TABLE = json.loads((ROOT / "device" / "demo" / "demo.json").read_text())
LEAKS = {leak["name"]: leak for leak in TABLE["leaks"]}


class Record(NamedTuple):
    """One loss record of valgrind; functions innermost first, inlined ones included, without arguments."""

    objects: int
    bytes: int
    functions: list[str]


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    if not (DEMO / "memleak-demo").exists():
        pytest.skip("the demo program is not built (make device)")
    output = tmp_path_factory.mktemp("valgrind") / "out.xml"
    words = (
        "--leak-check=full --show-leak-kinds=all --num-callers=40 --run-libc-freeres=no --run-cxx-freeres=no"
    )
    argv: list[str | Path] = [
        "valgrind",
        *words.split(),
        "--xml=yes",
        f"--xml-file={output}",
        DEMO / "memleak-demo",
        "0.05",
    ]
    subprocess.run(argv, check=True, capture_output=True, timeout=100)
    return [
        record_of(error)
        for error in ET.parse(output).iter("error")
        if error.find("xwhat/leakedbytes") is not None
    ]


def record_of(error: ET.Element) -> Record:
    names = [frame.findtext("fn", "").split("(")[0] for frame in error.iterfind("stack/frame")]
    return Record(
        int(error.findtext("xwhat/leakedblocks", "0")), int(error.findtext("xwhat/leakedbytes", "0")), names
    )


def holds(chain: list[str], functions: list[str]) -> bool:
    """Whether the names of `functions` occur in this order; valgrind writes inlined ones without their scope."""
    rest = iter(chain)
    return all(any(name.split("::")[-1] == own.split("::")[-1] for own in rest) for name in functions)


def test_table_adds_up_and_is_prime() -> None:
    assert TABLE["total_bytes"] == sum(leak["bytes"] for leak in LEAKS.values())
    assert TABLE["total_objects"] == sum(leak["objects"] for leak in LEAKS.values())
    for leak in LEAKS.values():
        assert leak["objects"] * leak["size"] == leak["bytes"]
        assert is_prime(leak["objects"]) and is_prime(leak["size"])
        assert len(leak["functions"]) + (leak["root"] == "thread") >= 5


@pytest.mark.parametrize("name", LEAKS)
def test_planted_leak_has_one_stack_with_its_chain(records: list[Record], name: str) -> None:
    leak = LEAKS[name]
    root = ["start_thread"] if leak["root"] == "thread" else []
    found = [record for record in records if holds(record.functions, [*leak["functions"], *root])]
    # A block whose address is left over in a register or on a stack has a record of its own, with the same stack.
    assert len({tuple(record.functions) for record in found}) == 1
    assert (sum(r.objects for r in found), sum(r.bytes for r in found)) == (leak["objects"], leak["bytes"])


def test_nothing_else_but_the_runtime_is_held(records: list[Record]) -> None:
    chains = [leak["functions"] for leak in LEAKS.values()]
    others = [record for record in records if not any(holds(record.functions, chain) for chain in chains)]
    for record in others:
        of_threads = "allocate_dtv" in record.functions or "_dl_allocate_tls" in record.functions
        of_library_start = "call_init" in record.functions or "_dl_init" in record.functions
        assert of_threads or of_library_start, record


def test_stripped_with_its_symbols_in_a_file_beside_it() -> None:
    if shutil.which("readelf") is None or not (DEMO / "memleak-demo").exists():
        pytest.skip("readelf is not installed, or the demo program is not built (make device)")
    for name in ("memleak-demo", "libmemleak-demo.so"):
        sections = {path: read_elf("-SW", path) for path in (DEMO / name, DEMO / f"{name}.debug")}
        assert ".symtab" not in sections[DEMO / name] and ".debug_info" not in sections[DEMO / name]
        assert ".gnu_debuglink" in sections[DEMO / name] and ".eh_frame" in sections[DEMO / name]
        assert (
            ".symtab" in sections[DEMO / f"{name}.debug"]
            and ".debug_info" in sections[DEMO / f"{name}.debug"]
        )
        ids = {
            line.strip()
            for path in sections
            for line in read_elf("-n", path).splitlines()
            if "Build ID" in line
        }
        assert len(ids) == 1


def read_elf(option: str, path: Path) -> str:
    return subprocess.run(["readelf", option, path], text=True, capture_output=True, check=True).stdout
