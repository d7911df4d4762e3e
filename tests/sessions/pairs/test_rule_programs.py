"""Which BPF program serves a function is a matter of its rule, not of whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from memleak_android.host.pairs.schema import read_pair_sets
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.pairs.planning import SetsPlanner
from tests.sessions.pairs.conftest import WORKLOADS
from tests.support.bpf_agent import seen_in_session
from tests.support.bpf_programs import loaded
from tests.support.workloads import need

pytestmark = pytest.mark.bpf

ENTRIES = {"acquire_1", "acquire_2", "acquire_1x2", "acquire_2_for_1", "acquire_2x3_for", "acquire_3_at_1"}
RULES = {"rule_acquire", "rule_return", "rule_release"}


def programs(program: Path, *words: str) -> set[str]:
    planner = SetsPlanner(read_pair_sets(words)) if words else None
    options = SessionOptions(command=(str(program),), pairs=planner)

    def look(pid: int) -> set[str]:
        found = loaded(pid)
        return found if any(one.endswith("_return") for one in found) else set()

    return seen_in_session(options, (), look)


def one_pair(folder: Path, acquire: str) -> str:
    pair_file = folder / "one.toml"
    pair_file.write_text(
        f'[x]\nacquire = {{function = "pool_take", {acquire}}}\nrelease = {{function = "pool_give"}}\n'
    )
    return str(pair_file)


def test_of_the_heap_and_of_a_pool(pool: Path, tmp_path: Path) -> None:
    need("bpf")
    heap = programs(pool)
    assert {
        "acquire_1",
        "acquire_1x2",
        "acquire_2_for_1",
        "acquire_3_at_1",
        "release_1",
        "block_return",
    } <= heap
    assert not heap & RULES
    own = programs(pool, one_pair(tmp_path, 'size = "argument 1"'))
    assert own & (ENTRIES | RULES | {"release_1", "block_return"}) == {
        "acquire_1",
        "release_1",
        "block_return",
    }


def test_what_has_no_program_of_its_own(pool: Path, tmp_path: Path) -> None:
    need("bpf")
    block = programs(pool, one_pair(tmp_path, "size = 7"))
    assert block & (RULES | {"block_return"}) == {"rule_acquire", "block_return"}
    any_result = programs(pool, one_pair(tmp_path, 'size = "argument 1", success = "always"'))
    assert any_result & (RULES | {"block_return"}) == {"rule_acquire", "rule_return"}
    mixed = programs(pool, str(WORKLOADS / "pool.toml"))
    assert {"acquire_1", "acquire_1x2", "acquire_2_for_1", "rule_acquire", "block_return"} <= mixed
