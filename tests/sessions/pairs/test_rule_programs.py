"""Which BPF program serves a function is a matter of its rule, not of whose it is."""

from pathlib import Path

import pytest

from memleak_android.host.pairs.schema import read_pair_sets
from memleak_android.host.tracers.agent.session_options import SessionOptions
from memleak_android.host.tracers.pairs.planning import SetsPlanner
from tests.sessions.pairs.conftest import WORKLOADS
from tests.support.bpf_agent import loaded, seen_in_session
from tests.support.workloads import need

pytestmark = pytest.mark.bpf

RULES = {"rule_acquire", "rule_exit", "rule_release"}


def programs(program: Path, *words: str) -> set[str]:
    planner = SetsPlanner(read_pair_sets(words)) if words else None
    options = SessionOptions(command=(str(program),), pairs=planner)

    def look(pid: int) -> set[str]:
        found = loaded(pid)
        return found if "process_fork" in found else set()  # one of the last

    return seen_in_session(options, (), look)


def one_pair(folder: Path, acquire: str) -> str:
    pair_file = folder / "one.toml"
    pair_file.write_text(
        f'[x]\nacquire = {{function = "pool_take", {acquire}}}\nrelease = {{function = "pool_give"}}\n'
    )
    return str(pair_file)


def test_of_the_heap_and_of_pools(pool: Path, tmp_path: Path) -> None:
    need("bpf")
    heap = programs(pool)
    assert {"acquire_1", "acquire_block", "release_1", "block_return"} <= heap
    assert not heap & RULES
    mixed = programs(pool, str(WORKLOADS / "pool.toml"), "fd")
    assert {"acquire_1", "acquire_block", "rule_acquire", "block_exit"} <= mixed


@pytest.mark.parametrize(
    ("acquire", "expected"),
    [
        ('size = "argument 1"', "acquire_1 release_1 block_exit"),
        ("size = 7", "acquire_block release_1 block_exit"),
        ('handle = "argument 1"', "rule_acquire rule_exit release_1"),  # SSL_up_ref's kind
        ('size = "argument 1", success = "always"', "rule_acquire rule_exit release_1"),
    ],
)
def test_of_one_pair(acquire: str, expected: str, pool: Path, tmp_path: Path) -> None:
    need("bpf")
    found = programs(pool, one_pair(tmp_path, acquire))
    known = {name for name in found if name.startswith(("acquire", "release", "rule", "block"))}
    assert known == set(expected.split())
