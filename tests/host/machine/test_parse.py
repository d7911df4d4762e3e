"""Captured texts → values."""

import pytest

from memleak_android.host.machine.parse import parse_maps, parse_status
from memleak_android.unwind.maps import Mapping

MAPS = """\
5563a7f2b000-5563a7f2d000 r--p 00000000 fe:00 1573                       /usr/bin/sleep
5563a7f2d000-5563a7f31000 r-xp 00002000 fe:00 1573                       /usr/bin/sleep
7f6d1c000000-7f6d1c021000 rw-p 00000000 00:00 0
7f6d24e00000-7f6d24e01000 r-xs 00000000 00:0f 9                          /tmp/two words (copy)/lib a.so (deleted)
7f6d24f00000-7f6d24f01000 r--p 00000000 00:0f 10                         /tmp/line\\012feed
7ffd3b6e9000-7ffd3b70a000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
"""


def test_maps() -> None:
    found = parse_maps(MAPS)
    assert found[1] == Mapping(
        0x5563A7F2D000, 0x5563A7F31000, "r-xp", 0x2000, "/usr/bin/sleep", "fe:00", 1573
    )
    assert [mapping.path for mapping in found[2:]] == [
        "",
        "/tmp/two words (copy)/lib a.so (deleted)",
        "/tmp/line\nfeed",
        "[stack]",
        "[vsyscall]",
    ]
    assert found[-1].end == 0xFFFFFFFFFF601000


@pytest.mark.parametrize(
    "line",
    [
        "",
        "cat: /proc/1/maps: Permission denied",
        "1-2 r--p 0 00:00",
        "2-1 r--p 0 00:00 0",
        "x-y r--p 0 00:00 0",
    ],
)
def test_malformed_mappings_are_left_out(line: str) -> None:
    assert parse_maps(f"{line}\n1000-2000 r--p 0 00:00 0\n") == [Mapping(0x1000, 0x2000, "r--p", 0, "")]


@pytest.mark.parametrize("end", "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
def test_a_file_name_makes_no_mapping(end: str) -> None:
    """The kernel escapes only line feeds."""
    path = f"/tmp/a{end}1000-2000 r-xp 0 00:00 0 /usr/lib/libc.so"
    assert parse_maps(f"4000-5000 r-xp 0 00:00 0 {path}\n") == [Mapping(0x4000, 0x5000, "r-xp", 0, path)]


STATUS = """\
Name:\tWeb Content: 2
Umask:\t0022
State:\tS (sleeping)
Tgid:\t4711
Ngid:\t0
Pid:\t4712
PPid:\t1
Uid:\t1000\t1001\t1000\t1000
NSpid:\t4711\t17
VmSize:\t  2820 kB
"""


def test_status() -> None:
    status = parse_status(STATUS)
    assert (status.name, status.state, status.tgid, status.uid) == ("Web Content: 2", "S", 4711, 1001)
    assert status.has_memory and status.namespace_pids == (4711, 17)
    assert not parse_status(STATUS.replace("VmSize", "Other")).has_memory


@pytest.mark.parametrize("text", ["", "Name:\tx\nState:\n", "Name:\tx\nState:\tS\nTgid:\tx\nUid:\t0\t0\n"])
def test_no_status(text: str) -> None:
    with pytest.raises(ValueError, match="no /proc/PID/status"):
        parse_status(text)


@pytest.mark.parametrize("name", ["a) Z", "Tgid:\t1", "x\fVmSize:\t1", "x\u2028VmSize:", "\xff", ""])
def test_a_process_name_makes_no_field(name: str) -> None:
    status = parse_status(STATUS.replace("VmSize", "Other").replace("Web Content: 2", name))
    assert (status.name, status.state, status.tgid, status.has_memory) == (name, "S", 4711, False)
