"""Hand-made Profiles for reports. Counts and sizes are primes, so that a doubling or a swap shows."""

from dataclasses import replace

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import (
    Block,
    CallSite,
    Measurement,
    ModuleSummary,
    Profile,
    SymbolClass,
    Target,
    Totals,
    Unwinding,
)

SERVER, LIBC, CODEC = "/srv/server", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/srv/lib/libcodec.so"
IDS = {SERVER: "aa01", LIBC: "bb02", CODEC: "cc03", "": ""}


def frame(module: str, function: str, offset: int = 0, source: str = "", inlined: bool = False) -> Frame:
    file, _, line = source.partition(":")
    vaddr = 0x1000 + offset
    return Frame(
        0x7F0000000000 + vaddr,
        module,
        IDS[module],
        vaddr,
        function,
        offset,
        inlined,
        "eh_frame",
        file or None,
        int(line) if line else None,
    )


MALLOC = Frame(0, "", "", 0, "malloc", 0, False, "registers")
START = (frame(LIBC, "__libc_start_main", 0x85), frame(SERVER, "_start", 0x21))


def site(
    name: str, space: int, objects: int, *frames: Frame, kind: str = "user", end: str = "ROOT"
) -> CallSite:
    return CallSite(
        id=f"{name:0>16}",
        inuse_space=space,
        inuse_objects=objects,
        alloc_space=space * 2,
        alloc_objects=objects * 2,
        oldest_ns=7_300_000_000,
        kind=kind,
        end=end,
        frames=frames,
    )


DECODE = CallSite(
    id="00000000000dec0d",
    inuse_space=23_207,
    inuse_objects=23,
    alloc_space=102_919,
    alloc_objects=102,
    oldest_ns=11_000_000_000,
    kind="user",
    end="ROOT",
    frames=(
        MALLOC,
        frame(SERVER, "planted::innermost(unsigned long)", 0, "src/decode.cc:14", inlined=True),
        frame(SERVER, "planted::decode(Packet const&)", 0x1C, "src/decode.cc:22"),
        frame(SERVER, "main", 0x47, "src/main.cc:88"),
        *START,
    ),
    blocks=(
        Block(0x5555000010A0, 1009, 11_000_000_000, 4711, 4712),
        Block(0x5555000020A0, 1009, 5, 4711, 4711),
    ),
)
PARTIAL = CallSite(
    id="0000000000000bad",
    inuse_space=997,
    inuse_objects=1,
    alloc_space=None,
    alloc_objects=None,
    oldest_ns=2_000_000_000,
    kind="user",
    end="STACK_TRUNCATED",
    frames=(MALLOC, frame(CODEC, "", 0x23F), frame("", "")),
    approximate=True,
    stderr_space=31,
)
STDIO = site("510", 4096, 1, MALLOC, frame(LIBC, "_IO_file_doallocate", 0x9C), *START, kind="runtime")
POOL = site("2001", 72_704, 1, MALLOC, frame(LIBC, "call_init", 0x6E), kind="runtime")
REGION = site("3a9", 131_101, 1, replace(MALLOC, function="mmap64"), frame(SERVER, "main", 0x10), kind="mmap")


def profile(**changes: object) -> Profile:
    """A server with a leak, a partial and approximate stack, a mapping, the runtime's blocks and losses."""
    values: dict[str, object] = {
        "target": Target("x86_64", 4711, "./server --port 80", "bpf", "cfi", 0, exit_status=0),
        "duration_ns": 12_345_000_000,
        "measurement": Measurement.INCOMPLETE,
        "totals": Totals(
            inuse_space=101_211,
            inuse_objects=29,
            alloc_space=1_000_003,
            alloc_objects=1_009,
            unattributed_space=207,
            unattributed_objects=3,
            lost={"ring_full": 3, "later_cause": 5},
            untracked_frees=17,
            heap_bytes_of_target=135_168,
            tracer_cpu_s=0.25,
        ),
        "unwinding": Unwinding(stacks=5, complete=4, partial=1, ends={"ROOT": 4, "STACK_TRUNCATED": 1}),
        "sites": (REGION, POOL, DECODE, STDIO, PARTIAL),
        "modules": (
            ModuleSummary(SERVER, "aa01", SymbolClass.LINES),
            ModuleSummary(LIBC, "bb02", SymbolClass.NAMES),
            ModuleSummary(CODEC, "cc03", SymbolClass.NONE),
        ),
        "wall_clock_s": 1_763_704_800.0,
        "notes": ("blocks allocated before the trace began are not visible",),
    }
    return Profile(**(values | changes))  # type: ignore[arg-type]


def empty_profile() -> Profile:
    """A program that gave everything back."""
    return profile(
        measurement=Measurement.COMPLETE,
        totals=Totals(0, 0, 1_000_003, 1_009, 0, 0, {}, 0),
        unwinding=Unwinding(0, 0, 0, {}),
        sites=(),
        notes=(),
    )


def counted_profile() -> Profile:
    """profile() by a route that counts every allocation of every site."""
    known = replace(PARTIAL, alloc_space=1_994, alloc_objects=2)
    made = profile()
    return replace(made, sites=tuple(known if site is PARTIAL else site for site in made.sites))
