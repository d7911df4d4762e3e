"""The kernel's figures of a process against its counted blocks and regions, and what of the difference grows."""

import pytest

from memleak_android.host.analysis.balance import (
    RISE_MIN,
    ROWS_MAX,
    Balance,
    add_row,
    add_unread,
    balance_of,
    is_unread,
    is_unused,
    unowned_growth,
)
from memleak_android.host.analysis.memory_use import Mapping
from memleak_android.host.profile.growth import MappingSum, UnownedPart
from memleak_android.host.wire.blocks import Function
from tests.support.builders.blocks import live_rows

KB = 1024
SECOND = 10**9


def region(address: int, size: int) -> dict[str, int]:
    return {"address": address, "size": size, "function": Function.MMAP, "sequence": 0}


def test_what_blocks_and_regions_cover() -> None:
    mappings = [
        Mapping(0x10000, 0x30000, "", "anonymous", 128 * KB),  # two regions and 32 KB between them
        Mapping(0x40000, 0x50000, "", "anonymous", 64 * KB),  # blocks
        Mapping(0x60000, 0x70000, "[heap]", "allocator", 20 * KB),
        Mapping(0x80000, 0x90000, "/srv/data", "files", 64 * KB),
        Mapping(0xA0000, 0xB0000, "/memfd:x", "shared", 4 * KB),
        Mapping(0xC0000, 0xD0000, "", "anonymous", 0),  # a region that nothing was written to
    ]
    live = live_rows(
        region(0x10000, 48 * KB),
        region(0x24000, 48 * KB),
        region(0xC0000, 64 * KB),
        {"address": 0x48000, "size": 4 * KB, "function": Function.MALLOC},
        {"address": 0x41000, "size": 8 * KB, "function": Function.MALLOC},
        {"address": 3, "size": 1, "function": Function.PAIR},
    )
    found = balance_of(mappings, live, [])
    assert (found.unowned, found.kept, found.mapped) == (36 * KB, (64 - 12 + 20) * KB, (128 + 4) * KB)
    assert found.resident == (128 + 64 + 20 + 4) * KB
    assert found.largest == (MappingSum("", 32 * KB, 1), MappingSum("/memfd:x", 4 * KB, 1))


@pytest.mark.parametrize(
    ("after", "unowned"),
    [
        (
            Mapping(0x10000, 0x50000, "", "anonymous", 200 * KB),
            0,
        ),  # written to: a JVM's heap, a server's shared memory
        (Mapping(0x10000, 0x90000, "", "anonymous", 300 * KB), 256),  # it became larger, and was written to
        (Mapping(0x10000, 0x90000, "", "anonymous", 100 * KB), 100),
        (Mapping(0x60000, 0x70000, "", "anonymous", 32 * KB), 32),
        (Mapping(0, 0, "/memfd:held", "shared", 32 * KB), 32),  # by a descriptor alone
    ],
)
def test_what_was_mapped_at_the_first_reading_has_an_end(after: Mapping, unowned: int) -> None:
    first = [Mapping(0x10000, 0x50000, "", "anonymous", 4 * KB), Mapping(0, 0, "/memfd:held", "shared")]
    found = balance_of([after], live_rows(), first)
    assert (found.unowned, found.mapped) == (unowned * KB, after.rss)


@pytest.mark.parametrize(("end", "counts"), [(0x50000, False), (0x60000, True)])
def test_shared_memory_of_the_first_reading_is_its_other_users_too(end: int, counts: bool) -> None:
    first = Mapping(0x10000, 0x50000, "/dev/zero (deleted)", "shared", 4 * KB)
    now = Mapping(0x10000, end, "/dev/zero (deleted)", "shared", 200 * KB)
    found = balance_of([now], live_rows(), [first])
    assert found.mapped == found.resident == 200 * KB * counts


@pytest.mark.parametrize(
    ("start", "name", "unowned"), [(0x20000, "", 3), (0x21000, "", 4), (0x20000, "/memfd:x", 4)]
)
def test_variables_of_a_module_are_its_own_up_to_a_bound(start: int, name: str, unowned: int) -> None:
    part = "shared" if name else "anonymous"
    before = Mapping(0x10000, 0x20000, "/lib/module.so", "files", 64 * KB)
    found = balance_of([before, Mapping(start, 0x1000000, name, part, 4 << 20)], live_rows(), [])
    assert found.unowned == found.mapped == found.resident == unowned << 20


@pytest.mark.parametrize(("gap", "kept"), [(25, 0), (32, 32 * 99)])
def test_what_the_allocator_needs_for_small_blocks_is_not_kept(gap: int, kept: int) -> None:
    blocks = [
        {"address": 0x10000 + i * (7 + gap), "size": 7, "function": Function.MALLOC} for i in range(100)
    ]
    in_use = 100 * 7 + 99 * gap
    heap = Mapping(0x10000, 0x20000, "[heap]", "allocator", in_use)
    found = balance_of([heap], live_rows(*blocks), [])
    assert found.kept == kept


def rows(*unowned: int, kept: int = 0, regions: int = 0, resident: int = 0) -> dict[str, object]:
    """regions, resident: bytes that are written to in each second."""
    return {
        "rows": [
            [(i + 1) * SECOND, size, kept, size + i * regions, i * resident] for i, size in enumerate(unowned)
        ],
        "largest": [["", 7, 2]],
    }


def test_growth_in_regions_that_were_mapped_at_once() -> None:
    """Where memory without an owner grows, that alone is said: it lies in the same mappings."""
    (found,) = unowned_growth([rows(*[RISE_MIN] * 9, regions=RISE_MIN)], 0, 0, 60 * SECOND)
    assert (found.part, found.bytes_per_s) == (UnownedPart.REGIONS, pytest.approx(RISE_MIN))
    both = rows(*range(0, 10 * RISE_MIN, RISE_MIN), regions=RISE_MIN)
    assert [each.part for each in unowned_growth([both], 0, 0, 60 * SECOND)] == [UnownedPart.MAPPINGS]


def test_regions_that_are_mostly_reserved() -> None:
    """The stacks of threads without a join: 8 MiB each, of which a little is written to."""
    (written,) = unowned_growth([rows(*[RISE_MIN] * 9, regions=RISE_MIN)], 0, 0, 60 * SECOND)
    assert is_unused(written, 40 * RISE_MIN)
    assert not is_unused(written, 1.5 * RISE_MIN)


@pytest.mark.parametrize("resident", [[0], []], ids=["", "of an older recording"])
def test_a_fall_beyond_the_blocks_is_of_older_ones(resident: list[int]) -> None:
    fallen = [[(i + 1) * SECOND, 0, -i * RISE_MIN, 0, *resident] for i in range(9)]
    recorded = {"rows": fallen, "largest": []}
    (found,) = unowned_growth([recorded], 0, 0, 60 * SECOND)
    assert (found.part, found.bytes_per_s) == (UnownedPart.OLDER, pytest.approx(RISE_MIN))


def test_too_few_readings_of_a_session_that_is_long_enough() -> None:
    few, one_unread = rows(0, 1, 2, 3), add_unread(rows(0, 1, 2, 3))
    assert is_unread(one_unread, 0, 60 * SECOND)
    assert is_unread(add_unread(rows(*range(9))), 6 * SECOND, 60 * SECOND), "of a part of it"
    assert not is_unread(add_unread(rows(*range(5))), 0, 60 * SECOND)
    assert not is_unread(one_unread, 0, 2 * SECOND), "too short"
    assert not is_unread(few, 0, 60 * SECOND), "it ended"
    assert not is_unread(add_unread(rows(0, 1)), 0, 60 * SECOND), "it ended"
    assert not is_unread(None, 0, 60 * SECOND), "it was not read at all"


@pytest.mark.parametrize(("readings", "low"), [(9, RISE_MIN), (4, 0)], ids=["a trend", "too few for one"])
def test_memory_that_was_allocated_before_it_is_used(readings: int, low: int) -> None:
    """A vector's reserve that is filled, or the growth of a process that ended before the fifth reading."""
    (found,) = unowned_growth([rows(*[0] * readings, resident=RISE_MIN)], 0, 0, 60 * SECOND)
    assert (found.part, found.bytes_per_s, found.low) == (
        UnownedPart.RESIDENT,
        pytest.approx(RISE_MIN),
        pytest.approx(low),
    )
    assert found.rise == (readings - 1) * RISE_MIN


@pytest.mark.parametrize("kept_a_s", [0, RISE_MIN])
def test_smaps_that_are_read_ever_later_than_the_blocks(kept_a_s: int) -> None:
    """Of a large table, or on a busy machine: what was allocated meanwhile is not the allocator's."""
    recorded = None
    for i in range(1, 10):
        read_s = 1.2 * i
        held, meanwhile = (round(4 * RISE_MIN * seconds) for seconds in (i, read_s - i))
        kept = meanwhile + round(kept_a_s * read_s)
        balance = Balance(0, kept, 0, held + kept, held, ())
        recorded = add_row(recorded, i * SECOND, int(read_s * SECOND), balance)
    found = {each.part: each.bytes_per_s for each in unowned_growth([recorded], 0, 0, 60 * SECOND)}
    assert found.get(UnownedPart.ALLOCATOR, 0) == pytest.approx(kept_a_s)
    assert found[UnownedPart.RESIDENT] == pytest.approx(4 * RISE_MIN + kept_a_s)


def test_growth_without_an_owner() -> None:
    recorded = rows(*range(0, 10 * RISE_MIN, RISE_MIN))
    (found,) = unowned_growth([recorded], 0, 0, 60 * SECOND)
    assert (found.part, found.bytes_per_s) == (UnownedPart.MAPPINGS, pytest.approx(RISE_MIN))
    assert found.low <= RISE_MIN <= found.high and found.largest == (MappingSum("", 7, 2),)
    assert unowned_growth([recorded], 0, 8 * SECOND, 60 * SECOND) == (), "too short"


def test_growth_of_several_processes() -> None:
    """Workers that grow unseen, and a short one of which nothing is known."""
    grown, short = rows(*range(0, 10 * RISE_MIN, RISE_MIN)), rows(*[0] * 4, resident=RISE_MIN)
    (found,) = unowned_growth([rows(*[0] * 9), grown, short, grown, None], 0, 0, 60 * SECOND)
    assert (found.part, found.rise) == (UnownedPart.MAPPINGS, 2 * 9 * RISE_MIN)
    assert found.bytes_per_s == pytest.approx(2 * RISE_MIN) and found.low <= 2 * RISE_MIN <= found.high


@pytest.mark.parametrize(
    "sizes",
    [
        [RISE_MIN // 10 * i for i in range(9)],
        [0, 0, 0, 9 * RISE_MIN, 9 * RISE_MIN, 9 * RISE_MIN, 9 * RISE_MIN, 9 * RISE_MIN],
        [9 * RISE_MIN, 0] * 6,
        [5 * RISE_MIN] * 9,
    ],
    ids=["below the tolerance", "one step", "up and down", "steady"],
)
def test_no_growth(sizes: list[int]) -> None:
    assert unowned_growth([rows(*sizes)], 0, 0, 60 * SECOND) == ()


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        [],
        {"rows": 5},
        {"rows": [[1, 2]] * 9},
        {"rows": [["1", 2, 3, 4, 5]] * 9},
        {"rows": [[5, 1, 1, 1, 1]] * 9},
        {"rows": [[2**70 + i, 1, 1, 1, 1] for i in range(9)]},
        {"rows": [[i, 1, 1, -i << 20, 1] for i in range(9)]},
    ],
)
def test_hostile_recordings(recorded: object) -> None:
    assert unowned_growth([recorded], 0, 0, 60 * SECOND) == ()


def test_long_sessions_keep_fewer_rows() -> None:
    recorded = None
    for i in range(3 * ROWS_MAX):
        now_ns = (i + 1) * SECOND
        recorded = add_row(recorded, now_ns, now_ns, Balance(i * RISE_MIN, 0, i * RISE_MIN, 0, 0, ()))
    assert recorded is not None and ROWS_MAX // 2 <= len(recorded["rows"]) <= ROWS_MAX
    (found,) = unowned_growth([recorded], 0, 0, 3 * ROWS_MAX * SECOND)
    assert found.bytes_per_s == pytest.approx(RISE_MIN)
