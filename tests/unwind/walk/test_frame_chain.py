"""The walk over frame records, off-line: against a plain loop, on slices that hold anything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memleak_android.unwind.arch import arch_by_name
from memleak_android.unwind.arch.base import Arch
from memleak_android.unwind.maps import AddressSpace, Mapping
from memleak_android.unwind.trace import Method, SampleBatch, TraceEnd
from memleak_android.unwind.walk import frame_chain
from tests.support.stack_capture import CapturedStack, sample_batch

BASE = 0x7000
WORDS = 24


def arch_named(name: str) -> Arch:
    arch = arch_by_name(name)
    assert arch is not None
    return arch


def samples(arch: Arch, stacks: list[list[int]], pointers: list[int], pcs: list[int]) -> SampleBatch:
    """Slices from BASE on; pointers: the register that leads to the first record."""
    captured = []
    for words, pointer, pc in zip(stacks, pointers, pcs, strict=True):
        registers = [0] * len(arch.registers)
        registers[arch.sp], registers[arch.pc] = BASE, pc
        registers[arch.chain_slots[pc & 1] if arch.chain_slots else arch.fp] = pointer
        data = np.array(words, f"<u{arch.word_bytes}").tobytes()
        captured.append(CapturedStack(tuple(registers), BASE, data, at_return=True))
    return sample_batch(captured, arch)


def plain_walk(arch: Arch, stack: list[int], frame: int, pc: int, mask: int) -> tuple[list[int], TraceEnd]:
    width, low, found = arch.word_bytes, BASE, list[int]()
    while True:
        if found and arch.chain_slots and (found[-1] ^ pc) & 1:
            return found, TraceEnd.NO_UNWIND_ROW
        if frame == 0:
            return found, TraceEnd.ROOT
        if len(found) == frame_chain.MAX_FRAMES:
            return found, TraceEnd.MAX_FRAMES
        if frame < low or frame % width:
            return found, TraceEnd.NO_PROGRESS
        if frame + 2 * width > BASE + len(stack) * width:
            return found, TraceEnd.STACK_TRUNCATED
        index = (frame - BASE) // width
        address = stack[index + 1] & mask
        if not address:
            return found, TraceEnd.ROOT
        found.append(address)
        low, frame = frame + 2 * width, stack[index]


@given(st.data())
@settings(max_examples=100)
@pytest.mark.parametrize("name", ["x86_64", "arm64", "arm32"])
def test_any_slice_is_walked_as_a_plain_loop_does(name: str, data: st.DataObject) -> None:
    arch = arch_named(name)
    width = arch.word_bytes
    near = st.integers(-1, WORDS + 1).map(lambda index: BASE + index * width)
    word = st.one_of(near, near, st.just(0), st.integers(0, 2 ** (8 * width) - 1))
    stacks = data.draw(st.lists(st.lists(word, min_size=WORDS, max_size=WORDS), min_size=1, max_size=4))
    pointers = [data.draw(word) for _ in stacks]
    pcs = [data.draw(st.sampled_from([0x401000, 0x401001])) for _ in stacks]
    mask = 0x7FFF_FFFF_FFFF & (2 ** (8 * width) - 1)
    chains = frame_chain.ChainWalk(
        samples(arch, stacks, pointers, pcs), np.full(len(stacks), ~mask & 2**64 - 1, np.uint64)
    ).run()
    bounds = np.cumsum([0, *chains.counts.tolist()])
    for i, (stack, pointer, pc) in enumerate(zip(stacks, pointers, pcs, strict=True)):
        walked = chains.addresses[bounds[i] : bounds[i + 1]].tolist()
        assert (walked, TraceEnd(chains.end[i])) == plain_walk(arch, stack, pointer, pc, mask)


def test_a_deep_chain_is_cut_at_the_limit() -> None:
    arch = arch_named("x86_64")
    depth = frame_chain.MAX_FRAMES + 5
    stack = [word for i in range(depth) for word in (BASE + 16 * (i + 1), 0x401000 + i)]
    chains = frame_chain.ChainWalk(samples(arch, [stack], [BASE], [0x400000]), np.zeros(1, np.uint64)).run()
    assert chains.counts.tolist() == [frame_chain.MAX_FRAMES]
    assert chains.end.tolist() == [TraceEnd.MAX_FRAMES]
    assert chains.sp.tolist()[:2] == [BASE + 16, BASE + 32]


def test_signatures_are_taken_off() -> None:
    arch = arch_named("arm64")
    space = AddressSpace([Mapping(0x40_0000, 0x40_2000, "r-xp", 0, "/x")])
    mask = space.signature_mask(arch)
    signed = 0x40_1000 | 0x5A << 48
    chains = frame_chain.ChainWalk(
        samples(arch, [[0, signed]], [BASE], [0x40_0100]), np.full(1, mask, np.uint64)
    ).run()
    assert chains.addresses.tolist() == [0x40_1000]
    assert chains.end.tolist() == [TraceEnd.ROOT]


def test_a_trace_ends_before_data() -> None:
    arch = arch_named("x86_64")
    space = AddressSpace(
        [Mapping(0x400000, 0x402000, "r-xp", 0, "/x"), Mapping(0x600000, 0x601000, "rw-p", 0, "")]
    )
    stacks = [
        [BASE + 16, 0x401010, BASE + 32, 0x600010, 0, 0x401020],
        [BASE + 16, 0x401010, 0, 0x402000, 0, 0],  # behind the last byte of code: where a call was
    ]
    batch = samples(arch, stacks, [BASE, BASE], [0x400100, 0x999])
    masks = np.zeros(2, np.uint64)
    whole = frame_chain.traces_of(batch, frame_chain.ChainWalk(batch, masks).run(), masks)
    traces = frame_chain.within_code(whole, batch.space, [space])
    assert traces.address.tolist() == [0x400100, 0x401010, 0x999, 0x401010, 0x402000]
    assert traces.offsets.tolist() == [0, 2, 5]
    assert traces.end.tolist() == [TraceEnd.NO_MAPPING, TraceEnd.ROOT]
    assert traces.method.tolist() == [Method.REGISTERS, Method.FP, Method.REGISTERS, Method.FP, Method.FP]
