"""Both ends of the wire: device/wire.h as a C compiler sees it, host/wire/blocks.py as NumPy does."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memleak_android.host.wire import blocks
from memleak_android.host.wire.blocks import Block, BlockParser, BrokenStream, encode_block, read_blocks
from tests.support.builders import blocks as builders
from tests.support.oracles.symbols import need

HEADER = Path(__file__).parents[3] / "device" / "wire.h"
PARTS = ("wire.h", "wire_high_water.h", "wire_hooks.h")
TEXT = "".join(HEADER.with_name(name).read_text() for name in PARTS)

STRUCTS = {
    "ml_block": blocks.BLOCK,
    "ml_hello": blocks.HELLO,
    "ml_fixup": blocks.FIXUP,
    "ml_evidence": blocks.EVIDENCE,
    "ml_sparse_stack": blocks.SPARSE_STACK,
    "ml_frame_chain": blocks.FRAME_CHAIN,
    "ml_stack_above": blocks.STACK_ABOVE,
    "ml_live": blocks.LIVE,
    "ml_keys": blocks.KEYS,
    "ml_high_water": blocks.HIGH_WATER,
    "ml_status": blocks.STATUS,
    "ml_maps": blocks.MAPS,
    "ml_mapping": blocks.MAPPING,
    "ml_process": blocks.PROCESS,
    "ml_hooked": blocks.HOOKED,
    "ml_stop": blocks.STOP,
    "ml_exit_stop": blocks.EXIT_STOP,
    "ml_scan": blocks.SCAN,
    "ml_scanned": blocks.SCANNED,
    "ml_event": blocks.EVENT,
    "ml_error": blocks.ERROR,
    "ml_end": blocks.END,
    "ml_traces": blocks.TRACES,
    "ml_sites": blocks.SITES,
}

ENUMS = {
    "ML_BLOCK_": blocks.BlockKind,
    "ML_ARCH_": blocks.ArchNumber,
    "ML_COLLECTOR_": blocks.Collector,
    "ML_FN_": blocks.Function,
    "ML_EVIDENCE_": blocks.EvidenceFlag,
    "ML_HOOKED_": blocks.HookedFlag,
    "ML_KEY_": blocks.KeyFlag,
    "ML_LOST_": blocks.Lost,
    "ML_PROCESS_": blocks.ProcessEvent,
    "ML_REASON_": blocks.Reason,
    "ML_SITE_": blocks.SiteFlag,
    "ML_STOP_": blocks.StopMoment,
    "ML_STOPPED_": blocks.Stopped,
}


def run_c(tmp_path: Path, body: str) -> bytes:
    source, program = tmp_path / "wire.c", tmp_path / "wire"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{\n{body}\nreturn 0; }}\n'
    )
    subprocess.run([need("gcc"), "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return subprocess.run([program], check=True, capture_output=True).stdout


def is_number(dtype: np.dtype[np.void], name: str) -> bool:
    return dtype[name].kind in "ui" and dtype[name].shape == ()


def test_every_struct_and_field_of_the_header_is_mirrored() -> None:
    defined = {
        match[1]: re.findall(r"(\w+)(?:\[\w+\])?;", re.sub(r"/\*.*?\*/", "", match[2], flags=re.DOTALL))
        for match in re.finditer(r"^struct (ml_\w+) \{(.*?)^\};", TEXT, re.DOTALL | re.MULTILINE)
    }
    assert defined == {name: list(dtype.names or ()) for name, dtype in STRUCTS.items()}


def test_sizes_and_offsets(tmp_path: Path) -> None:
    lines = []
    for name, dtype in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field in dtype.names or ():
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}),'
                f" sizeof(((struct {name} *)0)->{field}));"
            )
    expected = []
    for name, dtype in STRUCTS.items():
        expected.append(f"{name} {dtype.itemsize}")
        for field, (of_field, offset) in ((f, dtype.fields[f][:2]) for f in dtype.names or ()):  # type: ignore[index]
            expected.append(f"{name}.{field} {offset} {of_field.itemsize}")
    assert run_c(tmp_path, "\n".join(lines)).decode().splitlines() == expected


def test_numbers_of_enums(tmp_path: Path) -> None:
    lines, expected = [], []
    for prefix, enum in ENUMS.items():
        for member in enum:
            lines.append(f'printf("{prefix}{member.name} %d\\n", (int){prefix}{member.name});')
            expected.append(f"{prefix}{member.name} {member.value}")
    assert run_c(tmp_path, "\n".join(lines)).decode().splitlines() == expected
    mirrored = {line.split()[0] for line in expected}
    in_header = set(re.findall(r"^\s+(ML_[A-Z0-9_]+) = ", TEXT, re.MULTILINE))
    assert in_header - mirrored == {"ML_FN_MAX", "ML_LOST_MAX"}


def test_constants(tmp_path: Path) -> None:
    names = {
        "ML_WIRE_VERSION": blocks.WIRE_VERSION,
        "ML_BLOCK_MAGIC": blocks.BLOCK_MAGIC,
        "ML_BLOCK_PAYLOAD_MAX": blocks.BLOCK_PAYLOAD_MAX,
        "ML_FIXUPS": blocks.FIXUPS,
        "ML_STACK_BYTES_MAX": blocks.STACK_BYTES_MAX,
        "ML_ABOVE_BYTES_MAX": blocks.ABOVE_BYTES_MAX,
        "ML_ABOVE_WORDS_MAX": blocks.ABOVE_WORDS_MAX,
        "ML_LOST_MAX": blocks.LOST_MAX,
        "ML_NO_TRACE": blocks.NO_TRACE,
        "ML_NO_MODULE": blocks.NO_MODULE,
    }
    body = "\n".join(f'printf("%llu\\n", (unsigned long long){name});' for name in names)
    assert [int(line) for line in run_c(tmp_path, body).split()] == list(names.values())


@pytest.mark.parametrize("name", STRUCTS)
def test_patterned_structs_have_the_same_bytes(tmp_path: Path, name: str) -> None:
    """Field n is 0xA1A2… + n·0x1010…: swapped fields and byte orders show at once."""
    dtype = STRUCTS[name]
    row = np.zeros(1, dtype)
    lines = [f"struct {name} it = {{0}};"]
    for n, field in enumerate(f for f in dtype.names or () if is_number(dtype, f)):
        bits = 8 * dtype[field].itemsize
        pattern = (0xA1A2A3A4A5A6A7A8 + n * 0x1010101010101010) % 2**bits
        lines.append(f"it.{field} = ({'ml_s32' if dtype[field].kind == 'i' else 'ml_u64'}){pattern:#x}ull;")
        row[field] = np.array(pattern, f"<u{bits // 8}").view(dtype[field])
    lines.append("fwrite(&it, sizeof it, 1, stdout);")
    assert run_c(tmp_path, "\n".join(lines)) == row.tobytes()


def test_literal_bytes_of_a_block() -> None:
    # the checksum by `printf "remark\\0\\0" | gzip | tail -c8 | head -c4`
    block = Block(blocks.BlockKind.LOG, b"remark\0\0")
    assert encode_block(block) == bytes.fromhex("4d4c4b31 0a00 0200 08000000 692455c7") + b"remark\0\0"


def test_blocks_read_back_whatever_the_pieces() -> None:
    blocks = [Block(10, b""), Block(10, bytes(8)), Block(99, bytes(range(256)) * 100)]
    data = b"".join(encode_block(block) for block in blocks)
    for piece_bytes in (1, 7, 16, 1 << 20):
        assert list(read_blocks(io.BytesIO(data), piece_bytes=piece_bytes)) == blocks


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: d[:-1], "cut after 39 bytes"),
        (lambda d: d[:50], "cut after 26 bytes"),
        (lambda d: d[:24] + b"\xff" + d[25:], "magic is 0x314b4cff, not 0x314b4c4d"),
        (lambda d: d[:30] + b"\x01" + d[31:], "wire version 1, not 2"),
        (lambda d: d[:32] + b"\xff\xff\xff\xff" + d[36:], "payload of 4294967295 bytes"),
        (lambda d: d[:32] + b"\x09\x00\x00\x00" + d[36:], "payload of 9 bytes"),
        (lambda d: d[:45] + b"\xff" + d[46:], "checksum does not match"),
    ],
)
def test_damaged_stream_ends_at_the_damage(damage: object, reason: str) -> None:
    data = encode_block(Block(10, bytes(8))) + encode_block(Block(10, bytes(24)))
    blocks: list[Block] = []
    with pytest.raises(BrokenStream) as caught:
        blocks.extend(read_blocks(io.BytesIO(damage(data))))  # type: ignore[operator]
    assert blocks == [Block(10, bytes(8))]
    assert caught.value.offset == 24
    assert reason in caught.value.reason


def test_huge_payload_is_refused_before_it_is_waited_for() -> None:
    header = (
        blocks.encode_block(Block(10, b""))[:8]
        + (blocks.BLOCK_PAYLOAD_MAX + 8).to_bytes(4, "little")
        + bytes(4)
    )
    with pytest.raises(BrokenStream):
        list(BlockParser().feed(header))


@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_typed_error_or_nothing(data: bytes) -> None:
    valid = encode_block(builders.hello())
    try:
        first, *_ = read_blocks(io.BytesIO(valid + data))
        assert first.kind == blocks.BlockKind.HELLO
    except BrokenStream as error:
        assert error.offset >= len(valid)
