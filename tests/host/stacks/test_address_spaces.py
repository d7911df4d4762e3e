"""Files mapped over time: exec, fork, a library closed and another mapped at its address."""

import numpy as np
import pytest

from memleak_android.host.stacks.address_spaces import AddressSpaces
from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import ProcessEvent
from memleak_android.host.wire.payloads import Maps
from tests.support.builders import blocks as builders

MAIN = "00400000-00500000 r-xp 00000000 08:01 7 /bin/main\n"
LIB = "7f0000000000-7f0000010000 r-xp 00000000 08:01 8 /lib/one.so\n"


def spaces(
    maps: list[Maps] | None = None, mappings: list[bytes] | None = None, processes: list[bytes] | None = None
) -> AddressSpaces:
    rows = [payloads.decode_mappings(b"".join(mappings))] if mappings else []
    events = [payloads.decode_processes(b"".join(processes))] if processes else []
    return AddressSpaces(maps or [], rows, events)


def path_at(made: AddressSpaces, pid: int, timestamp_ns: int, address: int) -> str | None:
    (index,) = made.index(np.array([pid], np.uint32), np.array([timestamp_ns], np.uint64))
    mapping = made.spaces[index].find(address)
    return mapping.path if mapping else None


def executed(pid: int, timestamp_ns: int) -> bytes:
    return builders.process(ProcessEvent.EXEC, pid=pid, timestamp_ns=timestamp_ns)


def forked(pid: int, parent: int, timestamp_ns: int) -> bytes:
    return builders.process(ProcessEvent.FORK, pid=pid, parent=parent, timestamp_ns=timestamp_ns)


def opened(
    path: str, timestamp_ns: int, start: int = 0x7F0000000000, end: int = 0x7F0000010000, pid: int = 1
) -> bytes:
    return builders.mapping(start, end, path, pid=pid, timestamp_ns=timestamp_ns)


def test_maps_hold_for_what_happened_before_they_were_read() -> None:
    made = spaces([Maps(1000, 1, MAIN)])
    assert path_at(made, 1, 10, 0x401000) == "/bin/main"
    assert path_at(made, 1, 2000, 0x401000) == "/bin/main"
    assert path_at(made, 1, 2000, 0x600000) is None
    assert path_at(made, 2, 2000, 0x401000) is None


TEXT = (
    "00400000-00401000 r--p 00000000 08:01 7 {0}\n"
    "00401000-00405000 r-xp {2} {1}\n"
    "00405000-00406000 r--p {3} 08:01 7 {0}\n"
)


@pytest.mark.parametrize(
    ("copy", "offset", "after", "expected"),
    [
        ("00:00 0", "00000000", "00005000", "/bin/main"),
        ("00:00 0 [anon:text]", "00000000", "00005000", "/bin/main"),
        ("08:01 8 /lib/one.so", "00001000", "00005000", "/lib/one.so"),
        ("00:00 0", "00000000", "00006000", ""),  # another place of the file follows
    ],
)
def test_text_copied_to_nameless_memory_is_its_file_s(
    copy: str, offset: str, after: str, expected: str
) -> None:
    made = spaces([Maps(1000, 1, TEXT.format("/bin/main", copy, offset, after))])
    (index,) = made.index(np.array([1], np.uint32), np.array([2000], np.uint64))
    mapping = made.spaces[index].find(0x402000)
    assert mapping is not None and (mapping.path, mapping.permissions) == (expected, "r-xp")
    assert mapping.file_offset == (0x1000 if expected else 0)


def test_memory_that_a_compiler_made_executable_later_was_generated_code_before() -> None:
    """By mprotect(2), which no tracer announces."""
    reserved = "7f0000000000-7f0000800000 {} 00000000 00:00 0\n"
    begun = f"{MAIN}{reserved.format('---p')}7f0000900000-7f0000901000 r-xp 00000000 08:01 8 /lib/one.so\n"
    library = "7f0000900000-7f0000901000 r-xp 00000000 08:01 8 /lib/one.so\n"
    later = f"{MAIN}7f0000000000-7f0000400000 rwxp 00000000 00:00 0\n{library}"
    made = spaces([Maps(1000, 1, begun), Maps(2000, 1, later)])
    (index,) = made.index(np.array([1], np.uint32), np.array([1500], np.uint64))
    found = [made.spaces[index].find(at) for at in (0x7F0000001000, 0x7F0000500000, 0x7F0000900000)]
    assert [bool(each and each.is_executable) for each in found] == [True, False, True]
    assert [each.path for each in found if each] == ["", "", "/lib/one.so"]


def test_nameless_memory_has_no_path() -> None:
    """The kernel's record calls it //anon: generated code, whose address means nothing in another run."""
    assert path_at(spaces(mappings=[opened("//anon", 500)]), 1, 600, 0x7F0000001000) == ""


def test_library_replaced_by_another_at_its_address() -> None:
    made = spaces([Maps(100, 1, MAIN + LIB)], [opened("/lib/two.so", 500, end=0x7F0000008000)])
    assert path_at(made, 1, 499, 0x7F0000001000) == "/lib/one.so"
    assert path_at(made, 1, 500, 0x7F0000001000) == "/lib/two.so"
    assert path_at(made, 1, 500, 0x7F0000009000) == "/lib/one.so"  # the part that was not covered
    assert path_at(made, 1, 500, 0x401000) == "/bin/main"


def test_maps_hold_in_order_of_time_not_of_arrival() -> None:
    """Threads send them by rings of their own."""
    other = LIB.replace("one", "two")
    made = spaces([Maps(100, 1, LIB), Maps(300, 1, LIB), Maps(200, 1, other), Maps(400, 1, other)])
    found = [path_at(made, 1, time, 0x7F0000001000) for time in (150, 250, 350, 450)]
    assert found == ["/lib/one.so", "/lib/two.so", "/lib/one.so", "/lib/two.so"]


def test_maps_that_read_like_those_before_make_no_new_space() -> None:
    made = spaces([Maps(time, 1, LIB) for time in (100, 200, 300, 400, 500)], [opened("/lib/two.so", 350)])
    times = np.array([150, 250, 320, 360, 450, 550], np.uint64)
    found = made.index(np.full(6, 1, np.uint32), times)
    assert len(set(found[:3].tolist())) == len(set(found[4:].tolist())) == 1
    assert len(made.spaces) == 3


def test_rest_behind_a_covered_part_keeps_its_file_offset() -> None:
    made = spaces([Maps(100, 1, LIB)], [opened("/lib/two.so", 500, 0x7F0000004000, 0x7F0000005000)])
    (index,) = made.index(np.array([1], np.uint32), np.array([600], np.uint64))
    found = [(m.start, m.end, m.file_offset, m.path) for m in made.spaces[index].mappings]
    assert found == [
        (0x7F0000000000, 0x7F0000004000, 0, "/lib/one.so"),
        (0x7F0000004000, 0x7F0000005000, 0, "/lib/two.so"),
        (0x7F0000005000, 0x7F0000010000, 0x5000, "/lib/one.so"),
    ]


def test_exec_ends_all_mappings_and_later_maps_hold_since_the_exec() -> None:
    texts = [Maps(100, 1, MAIN), Maps(900, 1, MAIN.replace("main", "other"))]
    made = spaces(texts, processes=[executed(1, 500)])
    assert path_at(made, 1, 499, 0x401000) == "/bin/main"
    assert path_at(made, 1, 500, 0x401000) == "/bin/other"
    assert path_at(made, 1, 1000, 0x401000) == "/bin/other"


def test_exec_without_maps_since_knows_nothing() -> None:
    assert path_at(spaces([Maps(100, 1, MAIN)], processes=[executed(1, 500)]), 1, 600, 0x401000) is None


def test_fork_continues_the_mappings_of_that_moment() -> None:
    made = spaces(
        [Maps(100, 1, MAIN + LIB)],
        [
            opened("/lib/before.so", 400, 0x600000, 0x601000),
            opened("/lib/after.so", 600, 0x700000, 0x701000),
            opened("/lib/own.so", 700, 0x800000, 0x801000, pid=2),
        ],
        [forked(2, 1, 500)],
    )
    assert path_at(made, 2, 800, 0x401000) == "/bin/main"
    assert path_at(made, 2, 800, 0x600000) == "/lib/before.so"
    assert path_at(made, 2, 800, 0x700000) is None
    assert path_at(made, 2, 800, 0x800000) == "/lib/own.so"
    assert path_at(made, 2, 650, 0x800000) is None
    assert made.parents == {2: 1}


def test_short_lived_child_that_execs() -> None:
    ended = builders.process(ProcessEvent.EXIT, pid=2, timestamp_ns=530)
    events = [forked(2, 1, 500), executed(2, 510), ended]
    made = spaces([Maps(100, 1, MAIN), Maps(520, 2, LIB)], processes=events)
    assert path_at(made, 2, 505, 0x401000) == "/bin/main"
    assert path_at(made, 2, 515, 0x401000) is None
    assert path_at(made, 2, 515, 0x7F0000001000) == "/lib/one.so"


@pytest.mark.parametrize("parents", [[(2, 2)], [(2, 3), (3, 2)]])
def test_forks_in_a_circle_end(parents: list[tuple[int, int]]) -> None:
    forks = [forked(*pair, 500) for pair in parents]
    assert path_at(spaces(processes=forks), 2, 600, 0x401000) is None


def test_one_space_per_epoch_that_is_asked_for() -> None:
    records = [opened("/x", n, 0x600000 + n * 0x1000, 0x601000 + n * 0x1000) for n in range(200, 400)]
    made = spaces([Maps(100, 1, MAIN)], records)
    found = made.index(np.array([1, 1, 1, 1], np.uint32), np.array([50, 1000, 250, 2000], np.uint64))
    assert found.tolist() == [0, 2, 1, 2]
    assert len(made.spaces) == 3


def test_hostile_maps_text() -> None:
    text = "ffff-1 r-xp 0 0:0 0 /a\n" + "0-1fffffffffffffffff r-xp 0 0:0 0 /b\nnonsense\n" + MAIN
    assert path_at(spaces([Maps(1, 1, text)]), 1, 5, 0x401000) == "/bin/main"


def images_at(made: AddressSpaces, pid: int, *timestamps_ns: int) -> list[int]:
    found = made.images(np.full(len(timestamps_ns), pid, np.uint32), np.array(timestamps_ns, np.uint64))
    return (found & 0xFFFFFFFF).tolist()


def test_image_changes_only_where_code_is_replaced() -> None:
    late = "7f5000000000-7f5000001000 r-xp 0 08:01 9 /lib/late.so\n"
    records = [
        opened("/lib/more.so", 200, 0x600000, 0x601000),
        opened("/lib/one.so", 300),
        opened("/lib/two.so", 400, 0x7F0000004000, 0x7F0000005000),
        opened("/lib/one.so", 500),
    ]
    texts = [Maps(100, 1, MAIN + LIB), Maps(250, 1, MAIN + LIB + late)]
    made = spaces(texts, records, [executed(1, 600)])
    found = images_at(made, 1, 50, 150, 200, 250, 300, 400, 450, 500, 600, 900)
    assert found == [*[0] * 5, 1, 1, 2, 3, 3]
    assert images_at(made, 7, 1, 2) == [0, 0]


def test_maps_read_later_that_name_another_file_are_another_image() -> None:
    made = spaces([Maps(100, 1, MAIN + LIB), Maps(200, 1, MAIN + LIB.replace("one", "two"))])
    assert images_at(made, 1, 150, 250) == [0, 1]


def test_deleted_file_is_still_the_same_code() -> None:
    made = spaces([Maps(100, 1, MAIN + LIB), Maps(200, 1, MAIN + LIB.replace("one.so", "one.so (deleted)"))])
    assert images_at(made, 1, 150, 250) == [0, 0]
