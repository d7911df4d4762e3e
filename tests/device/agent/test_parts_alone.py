"""Parts of the agent in programs of their own, which write what does not hold."""

import subprocess
from pathlib import Path

import pytest

from tests.support.gcc import gcc

HERE = Path(__file__).resolve().parents[1] / "programs" / "parts"
DEVICE = HERE.parents[3] / "device"
LINES = ["protocol/config", "protocol/host_lines"]
PROCESS = ["process/process_maps", "process/proc_file"]
SANITIZED = (
    "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts", "flags"),
    [
        # Mappings of the time that comes with them: else blocks of before a library's end are named in the next one.
        ("maps_now", PROCESS, ()),
        ("process_set", ["process/process_set"], SANITIZED),
        ("process_names", ["process/thread_states", "process/proc_file"], SANITIZED),
        ("trampolines", ["bpf/trampolines"], SANITIZED),
        ("ended_books", [], SANITIZED),
        # Peers of the socket, and the memory of those who joined, at random: a longer run has other seconds and seed.
        ("handshakes", ["shim/handshakes", "shim/target", "protocol/abstract_socket"], SANITIZED),
        ("lingering", ["protocol/abstract_socket"], SANITIZED),
        ("patient_read", ["process/patient_read", "process/proc_file"], SANITIZED),
        # As on a kernel before Linux 6.16, which cannot refuse descriptors.
        ("lingering", ["protocol/abstract_socket"], (*SANITIZED, "-DSO_PASSRIGHTS=9999")),
        (
            "hostile_segment",
            [*(f"shim/{part}" for part in ("target", "drain", "rows", "peak")), "evidence/bounds", *PROCESS],
            SANITIZED,
        ),
        # What a process says of its libraries and mappings, and what a host says.
        ("hostile_objects", ["process/target_objects", *PROCESS], SANITIZED),
        ("config_lines", ["inject/patch_plan", "snoop/config", *LINES], SANITIZED),
    ],
)
def test_it_finds_nothing_wrong(name: str, parts: list[str], flags: tuple[str, ...], tmp_path: Path) -> None:
    sources = [HERE / f"{name}.c", *(DEVICE / "agent" / f"{part}.c" for part in parts)]
    folders = [f"-I{DEVICE / folder}" for folder in ("", "agent", "cfi")]
    gcc("-std=gnu11", "-O1", "-g", "-pthread", *flags, *folders, *sources, "-o", tmp_path / name)
    words = [tmp_path / name, *(sources[:2] if name == "maps_now" else ("10", "1"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == ""
