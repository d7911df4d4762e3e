"""Code that the agent refuses to probe: the kernel would refuse it, or break it."""

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from memleak_android.host.elf.dynamic import FileIdentity
from memleak_android.host.machine.binaries import find_binary, local_arch
from memleak_android.host.pairs.schema import rule_line
from memleak_android.host.tracers.agent.session_options import file_lines
from memleak_android.host.tracers.probes.allocator import HEAP, HEAP_FUNCTIONS
from memleak_android.host.wire.blocks import WIRE_VERSION, BlockKind, BlockParser, Reason
from memleak_android.host.wire.payloads import decode_error

ARM, I386, RISCV = 40, 3, 243
CLASS_32, CLASS_64 = 1, 2
REPLACED = "{} is not the file that was read: it was replaced meanwhile (try again)"


def elf_header(path: Path, machine: int, elf_class: int) -> Path:
    path.write_bytes(struct.pack("<4sBBB9xHHI40x", b"\x7fELF", elf_class, 1, 1, 3, machine, 1))
    return path


def refusal(argv: list[str], probed: Path, *read: Path | FileIdentity) -> tuple[int, str]:
    """Reason and text of the ERROR block of a session with one probe in this file. read: whose offsets are said to be its."""
    identities = [identity_of(file) if isinstance(file, Path) else file for file in read]
    number, rule = HEAP_FUNCTIONS[0].number, rule_line(HEAP_FUNCTIONS[0].number, 0, HEAP, HEAP.rules[0])
    probe = f"probe {number:x} 0 0 0 0 1000 {probed}"
    files = [line for identity in identities for line in file_lines(str(probed), identity)]
    lines = [f"wire {WIRE_VERSION}", "arg /bin/true", rule, *files, probe, "start", ""]
    done = subprocess.run(
        [*argv, "bpf"], input="\n".join(lines).encode(), capture_output=True, timeout=60, check=False
    )
    blocks = list(BlockParser().feed(done.stdout))
    assert [blocks[0].kind, blocks[-1].kind] == [BlockKind.HELLO, BlockKind.END], done.stderr
    return decode_error(next(block.payload for block in blocks if block.kind == BlockKind.ERROR))


def identity_of(path: Path) -> FileIdentity:
    with path.open("rb") as file:
        return FileIdentity.of(file.fileno())


def own_agent() -> list[str]:
    path = find_binary("memleakd", local_arch())
    return [str(path)]


@pytest.mark.parametrize(
    ("machine", "elf_class", "expected"),
    [
        (ARM, CLASS_32, "is 32-bit arm code, where the kernel places no uprobes (use --tracer preload)"),
        (I386, CLASS_32, "is 32-bit, which cannot be traced (use a 64-bit build of it)"),
        (RISCV, CLASS_64, "is code of another machine (ELF machine 243), which cannot be traced"),
    ],
)
def test_code_that_takes_no_probes(tmp_path: Path, machine: int, elf_class: int, expected: str) -> None:
    path = elf_header(tmp_path / "libc.so", machine, elf_class)
    assert refusal(own_agent(), path) == (Reason.TARGET_ERROR, f"{path} {expected}")


def test_no_probe_goes_into_a_file_that_took_the_place_of_the_one_read(tmp_path: Path) -> None:
    """A target that swaps its library for a link to another program would have breakpoints planted in that."""
    read, other, path = tmp_path / "read.so", tmp_path / "other", tmp_path / "libc.so"
    elf_header(read, RISCV, CLASS_64)
    shutil.copy2(read, other)
    path.hardlink_to(read)
    assert refusal(own_agent(), path, read)[1].startswith(f"{path} is code of another machine")
    replaced = REPLACED.format(path)
    assert refusal(own_agent(), path, read, other) == (Reason.TARGET_ERROR, replaced)
    for take_the_place in (path.symlink_to, path.hardlink_to):
        path.unlink()
        take_the_place(other)
        assert refusal(own_agent(), path, read) == (Reason.TARGET_ERROR, replaced)
    path.unlink()
    path.symlink_to(read)
    read.write_bytes(read.read_bytes() + b"more")  # written in place: the same inode
    assert refusal(own_agent(), path, other)[1] == replaced


Replacement = Callable[[Path, Path], AbstractContextManager[None]]


@contextmanager
def linked_from_no_name(path: Path, other: Path) -> Iterator[None]:
    """O_TMPFILE of open(2): the file has had no other name."""
    path.unlink()
    descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR)
    os.write(descriptor, other.read_bytes())
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)  # which makes it follow the link
    os.close(descriptor)
    yield


@contextmanager
def mounted_over(path: Path, other: Path) -> Iterator[None]:
    subprocess.run(["mount", "--bind", other, path], check=True)
    yield
    subprocess.run(["umount", path], check=True)


@contextmanager
def by_the_procfs_of_another_namespace(path: Path, other: Path) -> Iterator[None]:
    """A link of its process 1, which is another process there than here."""
    mounted = path.parent / "proc"
    mounted.mkdir()
    script = 'mount -t proc proc "$0" && echo mounted && exec sleep 1000'
    command = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", script, mounted]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"mounted\n"
        path.unlink()
        path.symlink_to(f"{mounted}/1/root{other}")
        assert path.read_bytes() == other.read_bytes()
        yield
        process.kill()
    subprocess.run(["umount", mounted], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount")
@pytest.mark.parametrize("replaced", [linked_from_no_name, mounted_over, by_the_procfs_of_another_namespace])
def test_nor_into_one_that_took_it_in_another_way(replaced: Replacement, tmp_path: Path) -> None:
    path, other = tmp_path / "libc.so", tmp_path / "other"
    elf_header(path, RISCV, CLASS_64)
    shutil.copy2(path, other)
    read = identity_of(path)
    with replaced(path, other):
        assert refusal(own_agent(), path, read)[1] == REPLACED.format(path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount")
def test_nor_into_one_that_an_overlay_shows_since(tmp_path: Path) -> None:
    """Writing copies it up: the kernel then has another inode, whose number may be the same."""
    lower, upper, work, merged = folders = [tmp_path / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir()
    elf_header(lower / "libc.so", RISCV, CLASS_64)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, merged]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no overlay can be mounted here")
    try:
        path = merged / "libc.so"
        read = identity_of(path)
        assert refusal(own_agent(), path, read)[1].startswith(f"{path} is code of another machine")
        path.write_bytes(path.read_bytes() + b"more")
        assert refusal(own_agent(), path, read)[1] == REPLACED.format(path)
    finally:
        subprocess.run(["umount", merged], check=True)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "libc.so"
    make(path)  # opening the FIFO would wait for a writer for ever
    text = f"{path} is not a regular file (name the program's own file)"
    assert refusal(own_agent(), path) == (Reason.TARGET_ERROR, text)


def test_an_agent_without_programs_says_so(tmp_path: Path) -> None:
    qemu = shutil.which("qemu-arm-static")
    path = Path(find_binary("memleakd", local_arch())).parents[1] / "armeabi-v7a" / "memleakd"
    if qemu is None or not path.exists():
        pytest.skip("qemu-arm-static is not installed, or there is no agent (make device ABIS=armeabi-v7a)")
    probed = subprocess.run([qemu, path, "probe"], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(probed.stdout)["bpf_programs"] is False
    way_out = "bring the agent of the kernel's own ABI, or use --tracer preload"
    reason, text = refusal([qemu, str(path)], tmp_path / "absent")
    assert reason == Reason.TRACER_ERROR
    assert text == f"this 32-bit agent carries no BPF programs ({way_out})"
