"""The kernel's memory: what a program makes it hold is found, exactly, with the kernel's stack and the program's own."""

import os
from typing import Any

import pytest

from tests.sessions.kernel.conftest import Measure

pytestmark = pytest.mark.bpf

PIPE_BYTES = 65536
PERCPU_BYTES = 4096


def names(site: dict[str, Any]) -> list[str]:
    return [frame["function"].partition(".")[0] for frame in site["frames"]]


def of_caller(report: dict[str, Any], function: str, caller: str) -> list[dict[str, Any]]:
    """Sites of an allocator's function that `caller` of the program led to."""
    return [
        site
        for site in report["sites"]
        if names(site)[0] == function and caller in names(site) and "main" in names(site)
    ]


def kernel_part(site: dict[str, Any]) -> list[str]:
    return [one["function"] for one in site["frames"] if one["method"] == "kernel"]


def of_pipes(report: dict[str, Any], caller: str = "fill_pipe") -> list[dict[str, Any]]:
    """Sites of the pages that pipes hold; not of page tables nor of slabs that a write was the first to need."""
    return [
        site
        for site in of_caller(report, "mm_page_alloc", caller)
        if any("pipe_write" in name for name in kernel_part(site))
        and not any("slab" in name or name == "handle_mm_fault" for name in kernel_part(site))
    ]


@pytest.mark.parametrize("words", [("--kernel",), ("--kernel", "--without-btf")])
def test_pages_of_pipes_are_exact_with_both_stacks(measured: Measure, words: tuple[str, ...]) -> None:
    report = measured("pipes", 200, *words)
    sites = of_pipes(report)
    assert sum(site["inuse_space"] for site in sites) == 200 * PIPE_BYTES
    top = report["sites"][0]
    assert top in sites and top["kind"] == "kernel" and top["end"] == "ROOT"
    in_kernel = kernel_part(top)
    assert any("pipe_write" in name for name in in_kernel) and "vfs_write" in in_kernel
    assert not any(name.startswith(("bpf_", "__bpf_", "__traceiter")) for name in in_kernel)
    where = [frame["module"] for frame in top["frames"] if frame["method"] == "kernel"]
    assert set(where) == {"[kernel]"}
    assert names(top).index("fill_pipe") < names(top).index("hold") < names(top).index("main")
    # what else a pipe is made of, each part from a place of its own
    for function, maker in (("kmalloc", "alloc_pipe_info"), ("kmem_cache_alloc", "create_pipe_files")):
        parts = [site for site in of_caller(report, function, "fill_pipe") if maker in kernel_part(site)]
        counts = [site["inuse_objects"] for site in parts if "alloc_slab_obj_exts" not in names(site)]
        assert len(counts) >= 2 and set(counts) == {200}, function


def test_what_is_given_back_is_not_held(measured: Measure) -> None:
    report = measured("passing", 300)
    assert report["totals"]["alloc_space"] >= 300 * PIPE_BYTES
    assert sum(site["inuse_space"] for site in of_pipes(report, "pass_pipe")) == 0
    assert report["totals"]["inuse_space"] < 300 * PIPE_BYTES / 10


def test_messages_in_sockets_are_of_the_slab_allocator(measured: Measure) -> None:
    report = measured("sockets", 300)
    found = [
        site
        for site in report["sites"]
        if "fill_socket" in names(site) and any(name.startswith("sock_alloc_send") for name in names(site))
    ]
    # no page that the slab allocator made them of; its own metadata is excluded
    assert {names(site)[0] for site in found} <= {"kmalloc", "kmem_cache_alloc"}
    messages = [site for site in found if "alloc_slab_obj_exts" not in names(site)]
    # a head from its cache and the data, for each message
    assert sum(site["inuse_objects"] for site in messages) == 600
    assert sum(site["inuse_space"] for site in messages) >= 300 * 2000


def test_percpu_memory(measured: Measure) -> None:
    report = measured("percpu", 100, "--percpu")
    assert {names(site)[0] for site in report["sites"]} == {"percpu_alloc"}
    sites = of_caller(report, "percpu_alloc", "make_percpu_map")
    copies = int(os.sysconf("SC_NPROCESSORS_CONF"))
    values = [site for site in sites if site["inuse_space"] >= 100 * PERCPU_BYTES * copies]
    assert values and values[0]["inuse_objects"] == 100
    assert any("bpf_map_alloc_percpu" in name for name in kernel_part(values[0]))


def test_the_whole_machine_needs_no_target(measured: Measure) -> None:
    """Others allocate meanwhile: the program's pipes are among the largest all the same, found by the kernel's stack.

    If they allocate more than one processor can send, stacks are lost and counted, but no blocks.
    """
    report = measured("pipes", 1000, "--kernel", whole=True)
    assert report["target"]["pid"] == 0 and report["target"]["tracer"] == "kernel"
    pipes = [site for site in report["sites"] if any("pipe_write" in name for name in kernel_part(site))]
    without = 1000 * PIPE_BYTES - sum(site["inuse_space"] for site in pipes)
    if without > 0:
        totals = report["totals"]
        assert {"ring_full", "keys_full"} & set(totals["lost"]), totals
        assert totals["unattributed_space"] >= without and report["verdict"] == "incomplete"
    else:
        assert pipes[0] in report["sites"][:10]


def test_sizes_are_filtered_in_the_kernel(measured: Measure) -> None:
    report = measured("sockets", 100, "--kernel", "-z", "2048")
    assert report["sites"] and all(
        site["inuse_space"] >= 2048 * site["inuse_objects"] for site in report["sites"]
    )
    assert report["totals"]["alloc_space"] >= 2048 * report["totals"]["alloc_objects"]
