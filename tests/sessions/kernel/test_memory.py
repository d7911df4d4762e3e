"""The kernel's memory: what a program makes it hold is found, exactly, with the kernel's stack and the program's own; of a command
(`--kernel -- CMD`) that of all that it started, once it has ended.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.kernel.conftest import Measure, need_kernel
from tests.support.program_server import run_program, start_program

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
        assert totals["unattributed_space"] >= without and report["measurement"] == "incomplete"
    else:
        assert pipes[0] in report["sites"][:10]


def test_sizes_are_filtered_in_the_kernel(measured: Measure) -> None:
    report = measured("sockets", 100, "--kernel", "-z", "2048")
    assert report["sites"] and all(
        site["inuse_space"] >= 2048 * site["inuse_objects"] for site in report["sites"]
    )
    assert report["totals"]["alloc_space"] >= 2048 * report["totals"]["alloc_objects"]


MESSAGES, OPEN, LEFT = 400, 150, 100
# Many kernel stacks, of which hardly one is needed afterwards.
CHURN = "; sleep 0.3; ".join(
    (
        "ls -lR /etc /sys/kernel >/dev/null",
        "ps aux >/dev/null",
        "find /proc/self >/dev/null 2>&1",
        "tar cf - /etc 2>/dev/null | gzip | cat >/dev/null",
        f"{sys.executable} -c 'import asyncio, subprocess; asyncio.run(asyncio.create_subprocess_exec(\"true\"))'",
        "f=$(mktemp) && cp /bin/sh $f && mv $f $f.2 && ln $f.2 $f && chmod 600 $f && rm $f $f.2",
    )
)


@dataclass(frozen=True, slots=True)
class Outlived:
    report: dict[str, Any]
    daemon: int
    messages: int  # in the queues, by the kernel's own word


@pytest.fixture
def outlived(held: Path, tmp_path: Path) -> Iterator[Callable[..., Outlived]]:
    """outlived(*words, before=""): a session of the program behind a shell that does something else before."""
    need_kernel()
    report_file = tmp_path / "report.json"
    own = shlex.join(map(str, (held, "outlive", MESSAGES, OPEN, LEFT)))
    queues: list[int] = []
    with ExitStack() as sessions:

        def run(*words: str, before: str = ":") -> Outlived:
            command = ["sh", "-c", f"{before}; exec {own}"]
            session = sessions.enter_context(
                start_program(
                    ["--kernel", *words, "--json", report_file, "--", *command],
                    stdin=subprocess.PIPE,  # its end is the daemon's
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            printed = [line.split() for line in session.stdout if line.startswith(("queue ", "daemon "))]
            queues.extend(int(number) for what, number in printed if what == "queue")
            errors = session.stderr.read()
            assert session.wait() in (0, 6), errors
            (daemon,) = (int(number) for what, number in printed if what == "daemon")
            return Outlived(
                json.loads(report_file.read_text()), daemon, sum(_queued()[queue] for queue in queues)
            )

        yield run
        for queue in queues:
            subprocess.run(["ipcrm", "-q", str(queue)], check=True)


def _queued() -> dict[int, int]:
    """How many messages are in each queue (/proc/sysvipc/msg, proc(5))."""
    rows = [line.split() for line in Path("/proc/sysvipc/msg").read_text().splitlines()[1:]]
    return {int(row[1]): int(row[4]) for row in rows}


def of_messages(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages' sites; the slab allocator's own metadata is excluded."""
    found = [site for site in of_caller(report, "kmalloc", "send_all") if "load_msg" in kernel_part(site)]
    return [site for site in found if "alloc_slab_obj_exts" not in names(site)]


def test_what_outlives_a_command_is_held_and_what_it_gave_back_is_not(
    outlived: Callable[..., Outlived],
) -> None:
    found = outlived()
    report = found.report
    assert report["target"]["exit_status"] == 0 and report["target"]["tracer"] == "kernel"
    assert report["totals"]["alloc_space"] >= (OPEN + LEFT) * PIPE_BYTES
    pipes = of_pipes(report, "leave_open")
    of_daemon = [site for site in pipes if "run_daemon" in names(site)]
    assert sum(site["inuse_space"] for site in of_daemon) == LEFT * PIPE_BYTES
    assert sum(site["inuse_space"] for site in pipes) == LEFT * PIPE_BYTES
    assert report["sites"][0] in of_daemon
    assert any(note.startswith("1 process of the command still ran at its end") for note in report["notes"])
    assert any(
        note.startswith("of the kernel's memory what is held after the command's end")
        for note in report["notes"]
    )

    messages = of_messages(report)
    assert found.messages == MESSAGES
    assert sum(site["inuse_objects"] for site in messages) == found.messages
    assert {site["inuse_space"] / site["inuse_objects"] for site in messages} == {
        2048
    }  # 2000 behind a struct msg_msg of 48
    assert {one["pid"] for site in of_daemon for one in site["processes"]} == {found.daemon}
    assert {names(site).index("send_message") < names(site).index("main") for site in messages} == {True}


def test_stacks_that_nothing_names_make_room_for_others(outlived: Callable[..., Outlived]) -> None:
    found = outlived("--max-stacks", "400", before=f"{CHURN}; sleep 1")
    assert found.report["totals"]["alloc_objects"] > 10_000
    assert sum(site["inuse_objects"] for site in of_messages(found.report)) == found.messages == MESSAGES


def test_blocks_without_room_for_their_stack_are_reported(outlived: Callable[..., Outlived]) -> None:
    report = outlived("--max-stacks", "8", before=CHURN).report
    assert report["totals"]["lost"]["keys_full"] > 100
    assert report["measurement"] == "incomplete"
    assert any("of the blocks held have no stack" in note for note in report["notes"])


def test_a_command_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    need_kernel()
    done = run_program(["--kernel", "--", tmp_path / "not-there"])
    assert done.returncode not in (0, 6)
    assert "not-there: No such file or directory" in done.stderr and done.stderr.count("\n") == 1


def test_percpu_memory_of_a_command(held: Path, tmp_path: Path) -> None:
    """Of maps that it makes, and that end with it."""
    need_kernel()
    report_file = tmp_path / "report.json"
    words = ["--percpu", "--json", report_file, "--", held, "percpu", "100"]
    with start_program(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as session:
        _, errors = session.communicate("\n\n", timeout=120)
    assert session.returncode == 0, errors
    report = json.loads(report_file.read_text())
    values = 100 * PERCPU_BYTES * int(os.sysconf("SC_NPROCESSORS_CONF"))
    assert report["totals"]["alloc_space"] >= values
    assert 100 <= report["totals"]["alloc_objects"] < 150  # what ends a map may allocate too
    assert not of_caller(report, "percpu_alloc", "make_percpu_map")
