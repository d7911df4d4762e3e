"""Stacks → call sites: frames with names, and the sums of each stack."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memleak_android.host.analysis.block_sums import BlockSums, StackSums, rounded
from memleak_android.host.profile.field_types import BYTE
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.growth import Growth
from memleak_android.host.profile.ownership import NO_PATTERNS, Ownership
from memleak_android.host.profile.profile import CallSite, ModuleSummary, ProcessShare
from memleak_android.host.profile.runtime_sites import site_kind
from memleak_android.host.profile.site_id import PlaceNumbers, id_of_parts, identity_part
from memleak_android.host.stacks.modules import ModuleFile, ScriptModule
from memleak_android.host.stacks.table import StackTable
from memleak_android.host.symbols.symbolizer import NAMELESS, ResolvedFrame, Symbolizer
from memleak_android.host.wire.blocks import (
    FIRST_KERNEL_FUNCTION,
    FIRST_PAIR_FUNCTION,
    FIRST_REGION_FUNCTION,
    Function,
    Rows,
)
from memleak_android.host.wire.session import SessionTracing
from memleak_android.unwind.trace import Method, TraceEnd

# The step that runs, and the share of it (0 to 1) that is done.
ProgressCallback = Callable[[str, float], None]


def no_progress(step: str, share: float) -> None:
    pass


_STACKS_AT_ONCE = 1 << 16
_SITES_PER_PROGRESS = 1 << 12
_WRAPPER = re.compile(r"_*(GI_+)?(mmap|mmap64|mremap|shmat|s?brk|syscall)")
FOLDED = "[further calls of a recursion, or other frames, left out]"
_END_NAMES = {end.value: end.name for end in TraceEnd}


class SiteNamer:
    """Makes the frames of stacks, with names. Addresses are resolved together, module by module.

    files: modules by number. tracing: whose pairs name calls.
    """

    def __init__(
        self,
        table: StackTable,
        files: Sequence[ModuleFile],
        symbolizer: Symbolizer,
        tracing: SessionTracing,
        ownership: Ownership = NO_PATTERNS,
    ) -> None:
        self.table = table
        self._files = files
        self._symbolizer = symbolizer
        self._pairs = tracing.pair_functions
        self._units = tracing.pair_units
        self._ownership = ownership
        self._used: set[int] = set()  # numbers of modules
        self._frames: list[tuple[Frame, ...]] = []  # by number of the distinct frame in the table
        self._identities: list[bytes] = []  # likewise: what a site's id is made of

    def resolve(self, stacks: NDArray[np.int64]) -> None:
        """Must precede named() of these stacks."""
        n_new = len(self.table.distinct_frames) - len(self._frames)
        self._frames += [()] * n_new
        self._identities += [b""] * n_new  # never empty once it is known
        used = np.flatnonzero(self.table.frames_used(self.table.first_trace[stacks])).tolist()
        numbers = np.array([number for number in used if not self._identities[number]], np.int64)
        rows = self.table.distinct_frames[numbers]
        names = self._resolve(rows)
        for number, row in zip(numbers.tolist(), rows, strict=True):
            self._frames[number] = self._frame(row, names)
            self._identities[number] = b"\n".join(map(identity_part, self._frames[number]))

    def _resolve(self, rows: Rows) -> dict[tuple[int, int], tuple[ResolvedFrame, ...]]:
        """By module number and the vaddr that was resolved."""
        names: dict[tuple[int, int], tuple[ResolvedFrame, ...]] = {}
        vaddrs = rows["vaddr"] - rows["is_return"]
        for number in np.unique(rows["module"]).tolist():
            if number < len(self._files):
                file, wanted = self._files[number], np.unique(vaddrs[rows["module"] == number])
                if isinstance(file, ScriptModule):
                    chains = file.resolve(wanted)
                else:
                    self._used.add(number)
                    chains = self._symbolizer.resolve(file, wanted)
                names.update(zip(((number, vaddr) for vaddr in wanted.tolist()), chains, strict=True))
        return names

    def named(self, stacks: NDArray[np.int64]) -> Iterator[tuple[tuple[Frame, ...], str]]:
        """The frames of each stack and its site's id. Frames: the allocation function first, then its callers."""
        table = self.table
        calls = {number: self._allocation(number) for number in np.unique(table.traces["function"]).tolist()}
        identities = {number: identity_part(call) for number, call in calls.items()}
        frames_of, identity_of = self._frames.__getitem__, self._identities.__getitem__
        for first in range(0, len(stacks), _STACKS_AT_ONCE):
            traces = table.first_trace[stacks[first : first + _STACKS_AT_ONCE]]
            functions = table.traces["function"][traces].tolist()
            for function, trace in zip(functions, traces.tolist(), strict=True):
                numbers = table.frame_numbers(trace).tolist()
                while is_region(function) and numbers and _is_wrapper(frames_of(numbers[0])):
                    del numbers[0]
                frames = tuple(chain((calls[function],), chain.from_iterable(map(frames_of, numbers))))
                yield frames, id_of_parts([identities[function], *map(identity_of, numbers)])

    def with_frame(self, is_sought: Callable[[Frame], bool]) -> NDArray[np.bool_]:
        """(n_stacks,) of the resolved ones: those with such a frame."""
        frames = np.array([any(map(is_sought, each)) for each in self._frames], bool)
        return self.table.use_one_of(self.table.first_trace, frames)

    def ids_of(self, stacks: NDArray[np.int64]) -> list[str]:
        """The sites' ids of these stacks."""
        self.resolve(np.unique(stacks))
        return [id_ for _, id_ in self.named(stacks)]

    def _allocation(self, number: int) -> Frame:
        is_known = number in set(Function) and 0 < number < FIRST_PAIR_FUNCTION
        name = Function(number).name.lower() if is_known else self._pair_of(number)[1]
        return Frame(0, "", "", 0, name, 0, False, Method.REGISTERS.name.lower())

    def _pair_of(self, number: int) -> tuple[str, str]:
        """Names of the pair and of its function."""
        index = number - FIRST_PAIR_FUNCTION
        return self._pairs[index] if 0 <= index < len(self._pairs) else (str(number), f"function {number}")

    def kind(self, function: int, frames: Sequence[Frame], objects: int) -> str:
        """Of a stack that ends in a call of this function (wire's Function)."""
        if function >= FIRST_PAIR_FUNCTION:
            return f"pair:{self._pair_of(function)[0]}"
        if is_region(function):
            return "mmap"
        return "kernel" if function >= FIRST_KERNEL_FUNCTION else site_kind(frames, objects)

    def unit(self, kind: str) -> str:
        """Of what a site of this kind holds."""
        return self._units.get(kind.removeprefix("pair:"), BYTE) if kind.startswith("pair:") else BYTE

    def _frame(
        self, row: np.void, names: Mapping[tuple[int, int], tuple[ResolvedFrame, ...]]
    ) -> tuple[Frame, ...]:
        """A frame of the table with the functions that were inlined there, innermost first."""
        number, address, vaddr = int(row["module"]), int(row["address"]), int(row["vaddr"])
        is_return = int(row["is_return"])
        file = self._files[number] if number < len(self._files) else None
        path = file.path if file else ""
        method = Method(row["method"]).name.lower() if int(row["method"]) in set(Method) else "unknown"
        if int(row["method"]) == Method.FOLDED:
            return (Frame(0, "", "", 0, FOLDED, 0, False, method),)
        return tuple(
            Frame(
                address,
                path,
                file.build_id if file else "",
                vaddr if file else 0,
                name.function,
                _offset(name, file, vaddr, is_return),
                name.inlined,
                method,
                name.file,
                name.line,
                self._ownership.owner(path, name.file),
            )
            for name in names.get((number, vaddr - is_return), NAMELESS)
        )

    def modules(self) -> tuple[ModuleSummary, ...]:
        files = sorted((self._files[number] for number in self._used), key=lambda file: file.path)
        return tuple(
            ModuleSummary(file.path, file.build_id, self._symbolizer.symbol_class(file)) for file in files
        )


def _offset(name: ResolvedFrame, file: ModuleFile | None, vaddr: int, is_return: int) -> int:
    """Of the return address, as backtrace(3) prints it, not of the byte that was resolved. Nameless code begins with its FDE."""
    if name.inlined:
        return 0
    if name.function:
        return name.offset + is_return
    found = file.module.table.function_at(vaddr - is_return) if file and file.module else None
    return vaddr - found[0] if found else 0


def is_region(function: int) -> bool:
    """Of the mmap family."""
    return FIRST_REGION_FUNCTION <= function < FIRST_PAIR_FUNCTION


def _is_wrapper(frames: Sequence[Frame]) -> bool:
    """A libc's function around the system call that the site is named by. Hooks return to its caller, BPF sees the call itself."""
    return bool(frames) and _WRAPPER.fullmatch(frames[-1].function) is not None


def make_sites(
    sums: StackSums,
    blocks: BlockSums,
    namer: SiteNamer,
    growth: Mapping[int, Growth],
    processes: Mapping[int, tuple[ProcessShare, ...]],
    places: PlaceNumbers,
    progress: ProgressCallback = no_progress,
) -> tuple[CallSite, ...]:
    """Sites of holding_stacks(sums). growth, processes: by number of the stack."""
    table, holding = namer.table, holding_stacks(sums)
    namer.resolve(holding)
    traces = table.traces[table.first_trace[holding]]
    columns = (
        holding,
        *(column[holding] for column in (sums.inuse_space, sums.inuse_objects, sums.alloc_space)),
        *(column[holding] for column in (sums.alloc_objects, sums.oldest_ns, sums.is_approximate)),
        rounded(np.sqrt(sums.variance[holding])),
        traces["function"],
        traces["end"],
    )
    known_ages: dict[tuple[int, ...], tuple[int, ...]] = {}  # most of a million stacks have equal ones
    sites: list[CallSite] = []
    for row, (frames, id_) in zip(_rows(columns), namer.named(holding), strict=True):
        if len(sites) % _SITES_PER_PROGRESS == 0:
            progress("naming stacks", len(sites) / len(holding))
        stack, space, objects, alloc_space, alloc_objects, oldest, approximate, error, function, end = row
        ages = tuple(sums.ages[stack].tolist())
        kind = namer.kind(function, frames, objects)
        sites.append(
            CallSite(
                id=id_,
                inuse_space=space,
                inuse_objects=objects,
                alloc_space=_known(alloc_space),
                alloc_objects=_known(alloc_objects),
                oldest_ns=oldest,
                kind=kind,
                end=end_name(end),
                frames=frames,
                approximate=approximate,
                stderr_space=error if blocks.is_sampled else None,
                blocks=blocks.blocks.get(stack, ()),
                growth=growth.get(stack),
                leaks=blocks.leaks.get(stack, ()),
                processes=processes.get(stack, ()),
                ages=known_ages.setdefault(ages, ages),
                place=places.number(frames, kind),
                unit=namer.unit(kind),
            )
        )
    return tuple(sites)


def holding_stacks(sums: StackSums) -> NDArray[np.int64]:
    """Numbers of the stacks that hold something, largest first."""
    holding = np.flatnonzero(sums.inuse_objects > 0)
    return holding[np.argsort(-sums.inuse_space[holding], kind="stable")]


def _rows(columns: Sequence[NDArray[Any]]) -> Iterator[tuple[Any, ...]]:
    """Rows of columns of equal length; only a part of them at a time are Python numbers."""
    for first in range(0, len(columns[0]), _STACKS_AT_ONCE):
        part = slice(first, first + _STACKS_AT_ONCE)
        yield from zip(*(column[part].tolist() for column in columns), strict=True)


def end_name(number: int) -> str:
    return _END_NAMES.get(number, "NO_UNWIND_ROW")


def _known(value: int) -> int | None:
    return value if value >= 0 else None
