"""The figure of `--reachability`'s stop, on a heap so small that only its arithmetic is looked at."""

from pathlib import Path

from bench.figures import reachability
from bench.programs import install


def test_each_route_once(tmp_path: Path) -> None:
    """Both readers search the same pages, of which most are the heap; each way has a value for each round that counts."""
    (heap,) = reachability.measure(2, install(tmp_path), tmp_path, [2])
    assert {len(values) for values in heap.ms.values()} == {2}
    assert heap.searched_bytes[reachability.AGENT] == heap.searched_bytes[reachability.HERE]
    assert heap.searched_bytes[reachability.HERE] > 2 << 20
    ratio = f"{reachability.AGENT} / {reachability.KEPT}"
    assert len(reachability.as_json([heap])["heaps"][0]["ratios"][ratio]) == 2
    assert ratio in reachability.as_text([heap])
    assert not (tmp_path / "core").exists()
