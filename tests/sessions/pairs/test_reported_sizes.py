"""Sizes that a function of the process returns: equal to the program's own count."""

from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.pairs.schema import read_pair_sets
from tests.sessions.pairs.conftest import WORKLOADS, in_library, traced

PAIRS = str(WORKLOADS / "sized.toml")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_library(tmp_path_factory.mktemp("sized"), "sized.c", "sized_main.c")


@pytest.mark.parametrize("heap", [("malloc",), ()])
def test_the_program_says_the_same(heap: tuple[str, ...], program: Path, tmp_path: Path) -> None:
    done = traced("preload", tmp_path, (PAIRS, *heap), program)
    (own,) = (line for line in done.out.splitlines() if line.startswith("own "))
    kept, n_kept, cells, n_cells = map(int, own.split()[1:])
    assert kept % 8 == 0 and cells % 16 == 0
    assert done.amounts("pair:heap") == (kept, n_kept)
    assert done.amounts("pair:cell") == (cells, n_cells)
    assert not done.totals["lost"]


@pytest.mark.bpf
def test_bpf_cannot_ask(program: Path, tmp_path: Path) -> None:
    said = traced("bpf", tmp_path, (PAIRS, "fd"), program, codes=(6,)).err
    assert "pair heap: keep: malloc_usable_size() would have to be called in the process" in said
    assert "--tracer preload or plt" in said


def test_a_size_function_that_is_not_exported(program: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "other.toml"
    pairs.write_text(Path(PAIRS).read_text().replace("cell_size(", "no_size("))
    said = traced("preload", tmp_path, (str(pairs),), program, codes=(6,)).err
    assert "pair cell: cell: no loaded file exports a function no_size for its sizes" in said
    assert "pair cell: no function to acquire is left, so the pair is skipped" in said


@pytest.mark.parametrize("size", ["cell_size", "cell_size()", "cell_size(argument 1)", "(handle)"])
def test_values_that_are_not_sizes(size: str, tmp_path: Path) -> None:
    pair_file = tmp_path / "one.toml"
    pair_file.write_text(
        f'[x]\nacquire = {{function = "a", size = "{size}"}}\nrelease = {{function = "b"}}\n'
    )
    with pytest.raises(UsageError, match="is not understood"):
        read_pair_sets((str(pair_file),))
