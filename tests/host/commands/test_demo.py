"""`demo`, the whole path: every planted leak exactly, by both tracers."""

import subprocess
from pathlib import Path

import pytest

from memleak_android.host.commands.demo import find_sites, read_planted
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.machine.capabilities import bpf_refusal
from memleak_android.host.machine.local.machine import probe_local
from tests.support.builders.profiles import SERVER, frame, site
from tests.support.preload_session import find_parts
from tests.support.program_server import run_program


def run_demo(tracer: str, folder: Path) -> subprocess.CompletedProcess[str]:
    find_parts()
    return run_program(["demo", "--tracer", tracer], folder)


@pytest.mark.parametrize("tracer", ["preload", pytest.param("bpf", marks=pytest.mark.bpf)])
def test_planted_leaks_are_found_exactly(tracer: str, tmp_path: Path) -> None:
    if tracer == "bpf" and (refusal := bpf_refusal(probe_local())):
        pytest.skip(refusal)
    done = run_demo(tracer, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert f"every allocation ({tracer})" in done.stdout
    table = done.stdout[done.stdout.index("\nplanted ") :].splitlines()[2:]
    assert len(table) == len(read_planted(find_binary("demo.json", local_arch())))
    assert all(line.endswith("complete") for line in table)


def test_planted_functions_may_have_others_between(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    path.write_text(
        '{"leaks": [{"name": "x", "allocator": "malloc", "bytes": 1, "objects": 1, "functions": ["a::b", "main"]}]}'
    )
    (planted,) = read_planted(path)
    names = ("malloc", "a::b(int)", "raise", "main")
    whole = site("1", 1, 1, *(frame(SERVER, name) for name in names))
    other = site("2", 1, 1, *(frame(SERVER, name) for name in reversed(names)))
    assert find_sites(planted, [whole, other]) == [whole]
