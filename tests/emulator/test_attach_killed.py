"""Agents killed at any moment of their call into a process: the arm64 process goes on unchanged."""

from pathlib import Path

import pytest

from memleak_android.host.machine.binaries import find_binary
from tests.emulator.phone.compiler import compiled, zig
from tests.emulator.phone.machine import Machine
from tests.support.debian_packages import Unavailable
from tests.support.workloads import ROOT

pytestmark = [pytest.mark.emulator, pytest.mark.proof]

FOLDER = "/data/local/tmp/killed"
KILLS = 120
PATIENCE_S = 240.0
# The reader of the process's words stays: its standard input is a fifo.
SCRIPT = f"""cd {FOLDER} || exit 1
mkfifo in
(setsid ./target threads 2 interrupted <in >out 2>&1 &)
exec 3>in
while [ ! -s out ]; do sleep 0.1; done
pid=$(pidof target); n=0; killed=0
while [ $n -lt {KILLS} ]; do
  ./memleakd inject $pid {FOLDER}/library.so length_of killed >/dev/null 2>&1 & agent=$!
  sleep 0.$(printf %03d $((n * 7 % 60 + 1)))
  kill -9 $agent 2>/dev/null && killed=$((killed + 1)); wait $agent 2>/dev/null
  kill -0 $pid || {{ echo "ended after $n"; exit 1; }}
  n=$((n + 1))
done
./memleakd inject $pid {FOLDER}/library.so length_of abcd | head -n 1
echo "killed $killed"
echo x >&3; sleep 1; cat out
"""


def test_a_process_is_left_as_it_was(machine: Machine, tmp_path: Path) -> None:
    sources = ROOT / "tests" / "device" / "programs"
    try:
        gcc = zig("aarch64-linux-gnu.2.36")
        flags = ("-O2", "-pthread", "-fno-sanitize=all")
        target = compiled("target", gcc, flags, [sources / "attach_workload.c"])
        flags = ("-O2", "-shared", "-fPIC", "-fno-sanitize=all")
        library = compiled("library.so", gcc, flags, [sources / "injected_library.c"])
    except Unavailable as error:
        pytest.skip(str(error))
    script = tmp_path / "script"
    script.write_text(SCRIPT)
    with machine.holding(FOLDER, target, library, find_binary("memleakd", "arm64"), script):
        code, out = machine.root_shell(f"sh {FOLDER}/script", timeout_s=PATIENCE_S)
        machine.root_shell("pkill -9 target")
    assert code == 0, out
    words = out.split("\n")
    assert words[0].split()[0] == "4", out
    assert "unharmed, 0 signals" in out
    assert int(out.partition("killed ")[2].split()[0]) > KILLS / 4, out
