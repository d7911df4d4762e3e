"""The corpus of real leaks: its table, and how a function's place is read from what tools print."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.programs import Program
from bench.real_leaks import peers
from bench.real_leaks.cases import LOOPS, Case, load
from bench.real_leaks.install import REGISTRIES
from bench.real_leaks.ranks import rank_of_stacks, rank_on_screen

SCREEN = """LEAKING  server grows by 9.0 MiB/min: 2 places, measured for 60 s

       grows by      holds   blocks  where
 1    8.0 MiB/min    8.0 MiB       12  handle  server.c:88
     └ accept_one server.c:71 ← main
 2    1.0 MiB/min    1.0 MiB       12  remember  cache.c:3

Not growing: 50.4 KiB in 6 places, most in start  server.c:2
"""


@pytest.mark.parametrize(
    ("function", "rank"), [("handle", 1), ("accept_one", 1), ("cache.c", 2), ("start", 0), ("free", 0)]
)
def test_rank_of_a_place_on_the_screen(function: str, rank: int) -> None:
    assert rank_on_screen(SCREEN, [function]) == rank


def test_rank_of_a_stack_is_by_bytes() -> None:
    assert rank_of_stacks([(5, ["a"]), (7, ["b::c"]), (6, ["d"])], ["c"]) == 1
    assert rank_of_stacks([(5, ["a"]), (7, ["b"])], ["d"]) == 0


@pytest.mark.parametrize("case", load(), ids=lambda case: case.id)
def test_each_case_can_be_run(case: Case) -> None:
    assert case.registry in REGISTRIES and (LOOPS / case.loop).is_file()
    assert case.functions and case.faulty != case.mended and case.report


def test_steps_go_on_until_the_session_is_over(tmp_path: Path) -> None:
    """An attach may take longer than the steps would."""
    until, words = tmp_path / "until", {"SECONDS": "0.1", "TRUTH": str(tmp_path / "truth.json")}
    program = f"import sys; sys.path.insert(0, {str(LOOPS)!r}); import common; common.run(print, 20)"
    argv = [sys.executable, "-u", "-c", program]
    loop = subprocess.Popen(argv, env={**words, "UNTIL": str(until)}, stdout=subprocess.PIPE)
    with loop:
        assert loop.stdout is not None
        for _ in range(10):  # half a second of steps
            assert loop.stdout.readline() == b"\n"
        until.touch()
        loop.stdout.read()
    assert loop.returncode == 0 and json.loads((tmp_path / "truth.json").read_text())["steps_per_s"] > 0


@pytest.mark.skipif(shutil.which("php") is None, reason="needs php: apt-get install php-cli")
def test_php_goes_on_beyond_its_usual_limit(tmp_path: Path) -> None:
    """128 MiB, which the leak itself reaches if an attach takes long."""
    program = tmp_path / "keep.php"
    program.write_text(f'<?php require "{LOOPS}/common.php"; $kept = str_repeat("x", 160 << 20);')
    assert not subprocess.run(["php", "-n", program], check=False).returncode


def test_valgrind_names_a_stripped_library_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = "<stack><frame><fn>malloc</fn></frame><frame><obj>/usr/lib/libc5.so</obj></frame></stack>"
    error = f"<error><xwhat><leakedbytes>82</leakedbytes></xwhat>{frames}</error>"
    (tmp_path / "valgrind.xml").write_text(f"<valgrindoutput>{error}</valgrindoutput>")
    monkeypatch.setattr(peers, "_run", lambda *_, **__: None)
    assert rank_of_stacks(peers.valgrind(Program("", ("true",), {}), tmp_path), ["libc5.so"]) == 1


def test_a_peer_does_not_read_an_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/old").touch()
    monkeypatch.setitem(peers.PEERS, "valgrind", lambda _, folder: [(9, [f.name for f in folder.iterdir()])])
    assert peers.rank("valgrind", Program("", ("true",), {}), ["old"], 1, tmp_path / "runs") == 0
