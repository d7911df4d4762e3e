"""Schema of a pair file, and one clear line for each invalid entry."""

from collections.abc import Callable
from pathlib import Path

import pytest

from memleak_android.host.errors import TargetError, UsageError
from memleak_android.host.pairs.operands import Condition, Handle
from memleak_android.host.pairs.schema import PairRule, Success, read_pair_sets, shipped_sets
from memleak_android.host.symbols.debug_files import open_elf
from memleak_android.host.tracers.agent.session_options import PairPlan, ProbedFile
from memleak_android.host.tracers.pairs.planning import SetsPlanner
from memleak_android.host.tracers.pairs.routes import Probes

GOOD = '[good]\nacquire = {function = "pool_take"}\nrelease = {function = "pool_give"}\n'


Plan = Callable[[str], PairPlan]


@pytest.fixture
def planned(pool: Path, tmp_path: Path) -> Plan:
    def plan(text: str) -> PairPlan:
        file = tmp_path / "some.toml"
        file.write_text(text)
        return SetsPlanner(read_pair_sets((str(file),))).plan([ProbedFile(0, str(pool), str(pool))])

    return plan


def rule_of(tmp_path: Path, acquire: str) -> PairRule:
    file = tmp_path / "one.toml"
    file.write_text(f'[x]\nacquire = {{function = "a", {acquire}}}\nrelease = {{function = "b"}}\n')
    return read_pair_sets((str(file),)).families[0].rules[0]


@pytest.mark.parametrize(
    ("size", "arguments", "factor"),
    [
        ("64", (), 64),
        ('"argument 3"', (3,), 1),
        ('"argument 1 * argument 2"', (1, 2), 1),
        ('"argument 2 * 16"', (2,), 16),
    ],
)
def test_sizes(tmp_path: Path, size: str, arguments: tuple[int, ...], factor: int) -> None:
    rule = rule_of(tmp_path, f"size = {size}")
    assert (rule.size_arguments, rule.factor) == (arguments, factor)


def test_handles_and_success(tmp_path: Path) -> None:
    rule = rule_of(tmp_path, 'handle = "*argument 4", handles = 2, success = "not -1"')
    assert (rule.handle, rule.success) == (Handle(4, True, 2), Success.NOT_MINUS_1)
    assert rule_of(tmp_path, "replaces = true").handle == Handle()


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("argument 2 == 0 or 1030", Condition(Handle(2), 0xFFFFFFFF, (0, 1030))),
        (
            "argument 1 == 323 or 425 or 434 or 437 or 438 or 447",
            Condition(Handle(1), 0xFFFFFFFF, (323, 425, 434, 437, 438, 447)),
        ),
        ("argument 1 == -1", Condition(Handle(1), 0xFFFFFFFF, (0xFFFFFFFF,))),
        ("*(argument 2 + 8) & 0x1 == 0", Condition(Handle(2, True, 1, 8), 1, (0,))),
    ],
)
def test_conditions(tmp_path: Path, text: str, condition: Condition) -> None:
    assert rule_of(tmp_path, f'when = "{text}"').when == condition


def test_a_release_that_may_fail_is_what_realloc_does_with_the_old_block(planned: Plan) -> None:
    result = planned(GOOD.replace('"pool_give"', '"pool_give", success = "zero"'))
    #            release? family, nesting, size, factor, handle, stored, bytes, how many, success, replaces, old …
    assert result.lines[1].startswith("rule 41 0 1 0 0 0 1 1 0 8 0 1 0 1 ")
    assert result.lines[3].split()[4] != "-"  # its return is probed
    assert result.releases == (65,)


OF_FOUR_BYTES = "handle_bytes = 4\n"


@pytest.mark.parametrize(
    ("head", "through", "line"),
    [
        (OF_FOUR_BYTES, 'through = "argument 7"', "through = 'argument 7' is not understood"),
        (OF_FOUR_BYTES, 'through = ""', "through = '' is not understood"),
        (OF_FOUR_BYTES, "through = 2", "through = 2 is not understood"),
        (OF_FOUR_BYTES, 'through = ["end"]', "through = ['end'] is not understood"),
        (OF_FOUR_BYTES, 'through = "end", success = "zero"', "through needs a handle that is an argument, and no success"),
        (OF_FOUR_BYTES, 'through = "end", handle = "*argument 1"', "through needs a handle that is an argument"),
        (OF_FOUR_BYTES, 'through = "end", handle = "descriptors of argument 1"', "is not understood"),
        ("", 'through = "end"', "through is for handles of 4 bytes"),
    ],
)  # fmt: skip
def test_ranges_that_cannot_be_released(planned: Plan, head: str, through: str, line: str) -> None:
    release = f'release = {{function = "pool_resize", {through}}}'
    result = planned(f'{GOOD}[bad]\n{head}acquire = {{function = "pool_open"}}\n{release}\n')
    assert any(line in one for one in result.problems), result.problems
    assert result.names == (("good", "pool_take"), ("good", "pool_give"))


def test_ranges_and_messages(planned: Plan) -> None:
    text = GOOD.replace('"pool_give"', '"pool_give", through = "argument 2"')
    text = text.replace("[good]", "[good]\nhandle_bytes = 4")
    result = planned(text.replace('"pool_take"', '"pool_take", handle = "descriptors of argument 2"'))
    handle = result.lines[0].split()[8:12]  # the argument, in a message, its bytes, how many
    assert handle == ["2", "2", "4", "253"]
    assert result.lines[1].split()[18] == "2"
    assert planned(text.replace("argument 2", "end")).lines[1].split()[18] == "7"


def test_a_pair_with_too_many_functions_is_skipped_whole(
    planned: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its acquire alone, everything it acquires would look leaked."""
    monkeypatch.setattr(Probes, "functions_max", 3)
    second = (
        GOOD.replace("good", "next").replace("pool_take", "pool_open").replace("pool_give", "pool_resize")
    )
    result = planned(GOOD + second)
    assert result.names == (("good", "pool_take"), ("good", "pool_give"))
    assert any("pair next: its 2 functions are too many, 2 of 3 are traced" in one for one in result.problems)


def test_sets_of_libc_fit_together(pool: Path) -> None:
    libc = next(
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc.so" in line and "r-x" in line
    )
    sets = read_pair_sets(("fd", "pthread", "stdio"))
    files = [ProbedFile(0, str(pool), str(pool)), ProbedFile(0, libc, libc)]
    assert not [one for one in SetsPlanner(sets).plan(files).problems if "too many" in one]


def test_rules_for_one_tracer_only(planned: Plan) -> None:
    other = '[[good.release]]\nfunction = "pool_open"\ntracer = "TRACER"\n'
    text = (
        GOOD.replace('release = {function = "pool_give"}', '[[good.release]]\nfunction = "pool_give"') + other
    )
    assert len(planned(text.replace("TRACER", "bpf")).names) == 3
    assert len(planned(text.replace("TRACER", "preload")).names) == 2


def take(options: str) -> str:
    return f'acquire = {{function = "pool_take", {options}}}'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("colour = 1", "[bad]: unknown key colour"),
        (take("colour = 1"), "[bad] acquire 1: unknown key colour"),
        ('acquire = {function = "pool_taek"}', "pair bad: pool_taek: no such function"),
        ('acquire = {function = "pool_data"}', "pool_data in pool is data"),
        ('acquire = {function = "pool_rounded"}', "no code of its own for it: inlined wherever it is called"),
        ('library = "libnone.so"\nacquire = {function = "x"}', "the command has no file libnone.so"),
        (take('size = "argument 7"'), "'argument 7' is not understood"),
        (take("handles = 3"), "handles = 3 is not understood"),
        (take('handle = "argument 1", handles = 2'), "handles = 2 needs memory with several handles"),
        (take("size = 0"), "size = 0: blocks without a size are not counted as held"),
        (
            "acquire = {function = [" + "'x', " * 65 + "]}",
            "[bad] acquire 1: function names 65 functions; name at most 64",
        ),
        ('acquire = {function = "+0x99999999"}', "not in an executable segment"),
        ('acquire = {function = "pool_open"}', "pool_open already acquires in pair bad"),
        ('acquire = {function = "pool_take"}', "pool_take already acquires in pair good"),
        *(
            (take(f'when = "argument {wrong}"'), f"when = 'argument {wrong}' is not understood")
            for wrong in ("7 == 1", "1 == 4294967296", "1 > 1")
        ),
        (take('handle = "argument 1 + 8"'), "'argument 1 + 8' is not understood"),
        (take('old = "*argument 1"'), "old = '*argument 1' is not understood"),
        (take(f'when = "argument 1 == {" or ".join("123456789")}"'), "is not understood; write like"),
        (take('handle = "descriptors of argument 7"'), "'descriptors of argument 7' is not understood"),
        (take('through = "end"'), "[bad] acquire 1: unknown key through"),
        ('acquire = {function = "pool_take"}\n[[bad.more]]', "[bad]: unknown key more"),
        (take('tracer = "plt"'), "tracer = 'plt' is not understood"),
        ("acquire = 5", "[bad] acquire 1 is not a table"),
        ("", "[bad] has no acquire that can be used"),
    ],
)
def test_bad_pairs_are_reported_and_the_rest_goes_on(planned: Plan, text: str, line: str) -> None:
    result = planned(f'{GOOD}[bad]\nrelease = {{function = "pool_open"}}\n{text}\n')
    assert any(line in one for one in result.problems), result.problems
    assert all(one.count("\n") == 0 for one in result.problems)
    assert result.names == (("good", "pool_take"), ("good", "pool_give"))


def test_a_pair_that_is_passed_over_keeps_nothing(planned: Plan) -> None:
    broken = '[bad]\nacquire = {function = "no_such"}\nrelease = {function = ["pool_take", "pool_give"]}\n'
    result = planned(broken + GOOD)
    assert result.names == (("good", "pool_take"), ("good", "pool_give"))
    assert not any(one.startswith("pair good") for one in result.problems), result.problems


def test_nothing_left_is_an_error(planned: Plan) -> None:
    with pytest.raises(UsageError, match="unknown key colour"):
        planned("[bad]\ncolour = 1\n")
    with pytest.raises(TargetError, match="no such function"):
        planned(GOOD.replace("pool_take", "no_such_name"))
    with pytest.raises(UsageError, match="is not TOML"):
        planned("[bad")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "nested too deep"),
        ("x = " + "9" * 10000, "is not TOML"),
        ("#" * (1 << 20) + "\n", "larger than 1,048,576 bytes"),
        ("".join(f"[pair{n}]\n" for n in range(65)), "has 65 pairs, at most 64 are read"),
        ("[bad]\x00", "is not TOML"),
    ],
)
def test_files_that_are_not_pair_files(planned: Plan, text: str, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        planned(text)


def test_a_glob_of_too_many_functions_is_refused(tmp_path: Path, pool: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(GOOD.replace('"pool_take"', '"*"').replace("[good]", '[good]\nlibrary = "libc.so.6"'))
    libc = next(Path(one) for one in ("/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"))
    if not libc.exists():
        pytest.skip(f"no {libc} here")
    with pytest.raises(TargetError, match=r"matches \d{4} functions; name fewer"):
        SetsPlanner(read_pair_sets((str(file),))).plan([ProbedFile(0, str(libc), str(libc))])


def test_shipped_sets_are_understood() -> None:
    assert {"fd", "malloc", "pthread", "stdio"} <= set(shipped_sets())
    sets = read_pair_sets(tuple(shipped_sets()))
    assert sets.with_heap and not sets.problems
    with pytest.raises(UsageError, match="no such file or set; sets are cxx, fd"):
        read_pair_sets(("nonsense",))


@pytest.mark.parametrize("library", ['"regex:/po+l$"', '["libnone.so", ""]', '"build-id:BUILD_ID"'])
def test_libraries_by_pattern_list_and_build_id(planned: Plan, pool: Path, library: str) -> None:
    known = open_elf(pool).build_id
    assert known
    result = planned(GOOD.replace("[good]", "[good]\nlibrary = " + library.replace("BUILD_ID", known)))
    assert [name for _, name in result.names] == ["pool_take", "pool_give"]
    assert not result.problems
    assert result.releases == (65,)


def test_libraries_that_are_not_there(planned: Plan) -> None:
    with pytest.raises(TargetError, match="no file build-id:00"):
        planned(GOOD.replace("[good]", '[good]\nlibrary = "build-id:00"'))
    with pytest.raises(UsageError, match="is not a regular expression"):
        planned(GOOD.replace("[good]", '[good]\nlibrary = "regex:("'))
