"""Parts of the agent in programs of their own, which write what does not hold or what they find."""

import random
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.wire import payloads
from memleak_android.host.wire.blocks import EvidenceFlag
from memleak_android.host.wire.payloads import MalformedBlock
from tests.support.builders.blocks import evidence_record
from tests.support.gcc import DEVICE, gcc, sanitized
from tests.support.workloads import PROGRAMS

HERE = Path(__file__).resolve().parents[1] / "programs" / "parts"
LINES = ["protocol/config", "protocol/host_lines"]
PROCESS = ["process/process_maps", "process/proc_file"]
PATCHING = [
    *("inject/patch", "inject/patch_threads", "process/thread_states", "process/target_objects", *PROCESS),
    *(f"ptrace/{part}" for part in ("threads", "waits", "repeat", "state", "x86_64", "arm64", "arm32")),
]
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
        ("patch_killed", PATCHING, (*SANITIZED, "-Wl,--wrap=pwrite,--wrap=ptrace")),
        # What a process says of its libraries and mappings, and what a host says.
        ("hostile_objects", ["process/target_objects", *PROCESS], SANITIZED),
        ("config_lines", ["inject/patch_plan", "snoop/config", *LINES], SANITIZED),
    ],
)
def test_it_finds_nothing_wrong(name: str, parts: list[str], flags: tuple[str, ...], tmp_path: Path) -> None:
    sources = [HERE / f"{name}.c", *(DEVICE / "agent" / f"{part}.c" for part in parts)]
    folders = ["-D_GNU_SOURCE=", *(f"-I{DEVICE / folder}" for folder in ("", "agent", "cfi"))]
    gcc("-std=gnu11", "-O1", "-g", "-pthread", *flags, *folders, *sources, "-o", tmp_path / name)
    words = [tmp_path / name, *(sources[:2] if name == "maps_now" else ("10", "1"))]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout == ""


CHANGES = 4000
# Of ml_evidence and of what follows: what says how long something is, and where it stands.
HEAD = (*range(4, 6), *range(56, 64))


def whole_records() -> list[bytes]:
    words = {0: 0x401000, 3: 0x402000, 200: 0x403000}
    return [
        evidence_record(sequence=1, stack=bytes(64)),
        evidence_record(sequence=2, stack=bytes(64), words={7: 1, 0: 2}),
        evidence_record(sequence=3, stack=bytes(64), chain=[1, 2, 3]),
        evidence_record(sequence=4, stack=bytes(64), above=(2048, words)),
        evidence_record(sequence=5, stack=bytes(64), chain=[1, 2], above=(2**20, words)),
        evidence_record(sequence=6, stack=bytes(64), above=(8, {})),
        evidence_record(sequence=7, stack=bytes(64), interrupted=(0x7000, bytes(65528))),
        evidence_record(sequence=8, stack=bytes(64), chain=[1], interrupted=(0x7000, bytes(8))),
    ]


def changed(record: bytes, random_: random.Random) -> bytes:
    """With other lengths, other flags, or an end that is missing; record_bytes is as long as it is."""
    made = bytearray(record)
    tail = range(144 + 21 * 8, len(made))
    for _ in range(random_.choice((1, 1, 2))):
        made[random_.choice((*HEAD, *random_.sample(tail, min(8, len(tail)))))] = random_.choice(
            (0, 1, 2, 8, 255)
        )
    if random_.random() < 0.3:
        del made[random_.randrange(144 + 8, len(made)) // 8 * 8 :]
    made[:4] = len(made).to_bytes(4, "little")
    return bytes(made)


def is_sound_to_the_host(record: bytes) -> bool:
    try:
        payloads.decode_evidence(record)
    except MalformedBlock:
        return False
    return True


def test_no_record_passes_that_the_host_refuses(tmp_path: Path) -> None:
    """And none is read behind its end, whatever it says of itself."""
    sources = PROGRAMS / "parts" / "evidence_bounds.c", DEVICE / "agent" / "evidence" / "bounds.c"
    program = sanitized(tmp_path / "evidence_bounds", "address,undefined", *sources)
    random_ = random.Random(6)
    whole = whole_records()
    records = whole + [changed(random_.choice(whole), random_) for _ in range(CHANGES)]
    given = b"".join(len(record).to_bytes(4, "little") + record for record in records)
    done = subprocess.run([program], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    verdicts = done.stdout.decode().split()
    assert verdicts[: len(whole)] == ["sound"] * len(whole)
    passed = [record for record, one in zip(records, verdicts, strict=True) if one == "sound"]
    assert 0.05 * CHANGES < len(passed) < 0.95 * CHANGES
    for flag in EvidenceFlag.STACK_ABOVE, EvidenceFlag.INTERRUPTED:
        assert len([r for r in passed if int.from_bytes(r[4:6], "little") & flag]) > len(whole)
    assert all(map(is_sound_to_the_host, passed))
