"""Finds the object that provides the allocator, and plans the probes of its functions.

The names of the heap's functions come from host/pairs/malloc.toml. A test compares the tables in C with it:
device/wire.h (numbers), device/agent/probes/function_names.h (messages), device/preload/entries/function_table.h (shim).
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from memleak_android.host.elf.dynamic import ElfFile, FunctionSymbol
from memleak_android.host.errors import TargetError
from memleak_android.host.machine.binaries import local_arch
from memleak_android.host.machine.local.process import LoadedObject
from memleak_android.host.pairs.schema import heap_family, rule_line
from memleak_android.host.tracers.agent.session_options import AllocatorChoice, Probe, file_lines
from memleak_android.host.tracers.agent.session_options import probe_lines as one_probe_s_lines
from memleak_android.host.tracers.probes.arch import PROBED_ARCHES
from memleak_android.host.tracers.probes.function_extents import FunctionExtents
from memleak_android.host.tracers.probes.probe_sites import ProbeSite, probes_at
from memleak_android.host.tracers.probes.return_sites import find_exits
from memleak_android.unwind.code.disassembly import Flow, Instruction
from memleak_android.unwind.elf_headers import EM_ARM, MACHINE_NAMES

_HOPS_MAX = 4
_CALL_BYTES_MAX = 8
_STUB_BYTES = 32  # a PLT entry has at most 16, a forwarding function fewer


@dataclass(frozen=True, slots=True)
class AllocatorFunction:
    """One function whose calls are recorded under the first of its names.

    number: enum ml_function of device/wire.h.
    arguments: number of integer arguments that the probe reads.
    names: symbols whose read arguments mean the same. An address gets the probe of the first function found there.
    """

    number: int
    arguments: int
    has_return_probe: bool
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[0]


HEAP = heap_family()
HEAP_FUNCTIONS = tuple(
    AllocatorFunction(number, rule.n_arguments, not rule.is_release, rule.functions)
    for number, rule in enumerate(HEAP.rules, 1)
)
_INDISPENSABLE = ("malloc", "free")
# Encodings of operator new, but for those that take std::nothrow: they throw std::bad_alloc.
_GO_SECTION = ".go.buildinfo"  # since Go 1.13: cmd/link/internal/ld/data.go
_OPERATOR_NEW, _NOTHROW = "_Zn", "RKSt9nothrow_t"
_CANNOT_LEAVE = "not probed, for an exception that passes a return probe ends the program"
_NOT_PROBED = "not probed, its address is chosen at run time (ifunc)"
# The last one is of LeakSanitizer, whose helper is a process in the program's memory, made by a direct system call.
_LENDING = ("vfork", "clone", "__lsan_is_turned_off")
FUNCTION_NUMBERS = {function.name: function.number for function in HEAP_FUNCTIONS}


def find_allocator(objects: Sequence[LoadedObject], choice: AllocatorChoice) -> LoadedObject:
    """The object whose malloc the dynamic linker binds: the first in search order that defines it.

    objects: in search order (LocalProcess.loaded_objects, loader.load_order).
    choice.object: names another object by path, file name, soname or name without version (`libc`), or a file that is
    not loaded yet.
    """
    if choice.object is not None:
        return _named_object(objects, choice.object)
    malloc = choice.symbols_prefix + "malloc"
    defining = [(item, found) for item in objects if (found := _exports(item, malloc))]
    version = next(
        (_default_version(found) for item, found in defining if _exports(item, "gnu_get_libc_version")), 0
    )
    for item, found in defining:
        if any(symbol.answers(version) for symbol in found):
            return item
    for item in objects[:1]:  # a static program has no exports, perhaps a symbol table
        program = _open(item.open_path)
        if program.static_functions({malloc}):
            return item
        if not defining and program.find(_GO_SECTION) is not None:
            raise TargetError(
                f"{item.path} is a Go program without C: its heap is Go's, and no malloc is called",
                "use go tool pprof",
            )
    searched = objects[0].path if len(objects) == 1 else f"any of the program's {len(objects)} objects"
    raise no_allocator(malloc, searched)


def _exports(item: LoadedObject, name: str) -> list[FunctionSymbol]:
    return _open(item.open_path).dynamic_functions({name})


def _default_version(found: Sequence[FunctionSymbol]) -> int:
    return next((symbol.version for symbol in found if symbol.is_default), 0)


def exports(path: str, function: str) -> bool:
    """Whether the dynamic linker can bind the function to this file. Raises TargetError if the file cannot be probed."""
    return bool(_open(path).dynamic_functions({function}))


def defines(elf: ElfFile, function: str) -> bool:
    """Whether the file has the function, be it for itself alone."""
    return bool(elf.dynamic_functions({function}) or elf.static_functions({function}))


def binds_its_own(elf: ElfFile, function: str) -> bool:
    """Whether the file calls its own definition of the function, whatever others there are.

    Bound by the linker (-Bsymbolic, -Bsymbolic-functions), or hidden from all other files. Raises TargetError where calls
    are not decoded.
    """
    exported = elf.dynamic_functions({function})
    if not exported:
        return bool(elf.static_functions({function}))
    return elf.is_symbolic or any(_is_called_directly(elf, symbol) for symbol in exported)


def _is_called_directly(elf: ElfFile, symbol: FunctionSymbol) -> bool:
    offset = elf.file_offset(symbol.vaddr)
    segment = None if offset is None else elf.text_segment(offset)
    if offset is None or segment is None:
        return False
    text, at = elf.view(segment.file_offset, segment.file_bytes), offset - segment.file_offset
    arch = PROBED_ARCHES.get(elf.machine)
    if arch is None:
        raise TargetError(f"{_machine_name(elf)} code is not decoded")
    sources, _ = arch.find_jumps(text, at, at + 1)
    found = (next(arch.decode(text[i : i + _CALL_BYTES_MAX].tobytes(), i), None) for i in sources.tolist())
    return any(each is not None and (each.flow, each.target) == (Flow.CALL, at) for each in found)


def lends_memory(objects: Sequence[LoadedObject]) -> bool:
    """Whether an object calls a function that makes a child in the caller's memory. posix_spawn()'s child does not allocate.

    An object that cannot be read is taken to call none: the agent counts such children that no probe saw.
    """
    for item in objects:
        with suppress(TargetError):
            elf = _open(item.open_path)
            if any(map(elf.imports, _LENDING)) or elf.dynamic_functions({_LENDING[-1]}):
                return True
    return False


def _named_object(objects: Sequence[LoadedObject], name: str) -> LoadedObject:
    for item in objects:
        base = os.path.basename(item.path)
        if name in (item.path, base, base.partition(".so")[0]) or name == _open(item.open_path).soname:
            return item
    if os.path.isfile(name):
        path = os.path.realpath(name)
        return LoadedObject(path, path)
    names = ", ".join(os.path.basename(item.path) for item in objects)
    raise TargetError(f"no object named {name} in the program", f"it has {names}")


def plan_probes(
    object_path: str, choice: AllocatorChoice, *, is_the_only_one: bool = True
) -> tuple[list[Probe], list[str]]:
    """Probes for the allocator in the ELF file at object_path, and remarks for `doctor` and -v.

    is_the_only_one: whether the session probes no other allocator: the returns of a kind of functions are probed in one way.
    Raises TargetError: not an ELF file, 32-bit, or without malloc or free.
    """
    elf = _open(object_path)
    notes: list[str] = []
    found = _find(elf, HEAP_FUNCTIONS, choice.symbols_prefix)
    missing = [name for name in _INDISPENSABLE if name not in found]
    if missing:
        raise no_allocator(f"{choice.symbols_prefix}{missing[0]}", object_path)
    for name in _INDISPENSABLE:
        if all(symbol.is_indirect for symbol in found[name]):
            raise chosen_at_run_time(choice.symbols_prefix + name, object_path)
    return _probes(elf, object_path, HEAP_FUNCTIONS, found, notes, may_be_left=is_the_only_one), notes


def probe_lines(probes: Sequence[Probe]) -> list[str]:
    """Configuration lines of the agent: the rules and the locations of the probes."""
    heap = [
        rule_line(function.number, 0, HEAP, rule)
        for function, rule in zip(HEAP_FUNCTIONS, HEAP.rules, strict=True)
        if any(probe.function == function.name for probe in probes)
    ]
    files = {line: None for probe in probes for line in file_lines(probe.path, probe.identity)}
    of_probes = (
        line for probe in probes for line in one_probe_s_lines(probe, FUNCTION_NUMBERS[probe.function])
    )
    return [*heap, *files, *of_probes]


def chosen_at_run_time(name: str, path: str) -> TargetError:
    """The refusal for a symbol that is a resolver (STT_GNU_IFUNC), which only the dynamic linker calls."""
    return TargetError(
        f"{name} of {path} is chosen when the program starts (ifunc), so its address is not in the file",
        "start it with --tracer preload, or name another object with --object",
    )


def unprobed_functions(notes: Iterable[str]) -> list[str]:
    """The notes that name functions whose allocations are missing."""
    ends = (_NOT_PROBED, _CANNOT_LEAVE)
    return [f"{note}: what it allocates is missing" for note in notes if note.endswith(ends)]


def no_allocator(name: str, searched: str) -> TargetError:
    return TargetError(
        f"no function {name} found in {searched}",
        "name the object that holds the allocator with --object, its prefix with --symbols-prefix,"
        " or use a build that is not stripped",
    )


def check_runs_here(path: str) -> None:
    """Raises TargetError if the ELF file at path is of another architecture."""
    name = _machine_name(_open(path))
    if name != local_arch():
        raise TargetError(f"{path} is {name} code, which cannot be traced here (expected {local_arch()})")


def _machine_name(elf: ElfFile) -> str:
    return MACHINE_NAMES.get(elf.machine, f"machine {elf.machine}")


def _open(path: str) -> ElfFile:
    try:
        elf = ElfFile(path)
    except OSError as error:
        raise TargetError(f"cannot open {path}: {error.strerror}") from error
    if elf.machine == EM_ARM:
        # A 64-bit kernel returns EOPNOTSUPP (arch/arm64/kernel/probes/uprobes.c). A 32-bit kernel decodes Thumb code as A32
        # (arch/arm/probes/uprobes/core.c), which would kill the target.
        raise TargetError(
            f"{path} is 32-bit arm code, where the kernel places no uprobes", "use --tracer preload with it"
        )
    if not elf.is_64_bit:
        raise TargetError(f"{path} is 32-bit, which cannot be traced", "use a 64-bit build of it")
    if elf.machine not in PROBED_ARCHES:
        raise TargetError(f"{path} is {_machine_name(elf)} code, which cannot be traced")
    return elf


def _find(
    elf: ElfFile, functions: Iterable[AllocatorFunction], prefix: str
) -> dict[str, list[FunctionSymbol]]:
    """Symbols by the function's name: exported ones, else (a static program) those of .symtab."""
    functions = tuple(functions)
    wanted = {prefix + name for function in functions for name in function.names}
    symbols = elf.dynamic_functions(wanted)
    if not any(symbol.name == prefix + functions[0].name for symbol in symbols):
        symbols = elf.static_functions(wanted)
    by_name: dict[str, list[FunctionSymbol]] = {}
    for function in functions:
        names = [prefix + name for name in function.names]
        own = sorted((s for s in symbols if s.name in names), key=lambda s: names.index(s.name))
        if own:
            by_name[function.name] = own
    return by_name


def _probes(
    elf: ElfFile,
    path: str,
    functions: Sequence[AllocatorFunction],
    found: dict[str, list[FunctionSymbol]],
    notes: list[str],
    *,
    may_be_left: bool = False,
) -> list[Probe]:
    owners: dict[int, AllocatorFunction] = {}
    chosen: list[tuple[AllocatorFunction, FunctionSymbol]] = []
    for function in functions:
        for symbol in found.get(function.name, ()):
            if symbol.is_indirect:
                notes.append(f"{symbol.name}: {_NOT_PROBED}")
            elif symbol.vaddr not in owners:
                owners[symbol.vaddr] = function
                chosen.append((function, symbol))
    sites: list[tuple[AllocatorFunction, ProbeSite]] = []
    for function, symbol in chosen:
        if _is_forwarded(elf, function, symbol, owners, chosen):
            notes.append(f"{symbol.name}: not probed, it only jumps to a function that is")
        else:
            sites.append((function, _site(elf, path, function, symbol)))
    exits, refused = (
        _exits(elf, sites) if may_be_left else ({}, [s.symbol for _, s in sites if _throws(s.symbol)])
    )
    notes += [f"{name}: {_CANNOT_LEAVE}" for name in refused]
    probes, remarks = probes_at(elf, path, [site for _, site in sites if site.symbol not in refused])
    notes += remarks
    return [replace(probe, exits=exits.get(probe.function_offset)) for probe in probes]


def _exits(
    elf: ElfFile, sites: Sequence[tuple[AllocatorFunction, ProbeSite]]
) -> tuple[dict[int, tuple[int, ...]], list[str]]:
    """By the functions' offsets the instructions that leave them, where one of the same kind may throw; and the symbols of those
    whose exits, or those of their kind, are not known: the returns of a kind are probed in one way.
    """
    exits, refused = dict[int, tuple[int, ...]](), list[str]()
    extents = FunctionExtents(elf)
    for kind in {function.number: function for function, site in sites if _throws(site.symbol)}.values():
        own = [site for function, site in sites if function is kind]
        found = [find_exits(elf, site.file_offset, site.size, extents, kind.names) for site in own]
        if any(one.refusal or not set(one.continued_in).issubset(kind.names) for one in found):
            refused += [site.symbol for site in own if _throws(site.symbol)]
        else:
            exits |= {site.file_offset: one.returns for site, one in zip(own, found, strict=True)}
    return exits, refused


def _throws(symbol: str) -> bool:
    return symbol.startswith(_OPERATOR_NEW) and not symbol.endswith(_NOTHROW)


def _site(elf: ElfFile, path: str, function: AllocatorFunction, symbol: FunctionSymbol) -> ProbeSite:
    offset = elf.file_offset(symbol.vaddr)
    if offset is None:
        raise TargetError(f"{path}: {symbol.name} at {symbol.vaddr:#x} is not in an executable segment")
    return ProbeSite(
        function.name, symbol.name, offset, symbol.size, function.arguments, function.has_return_probe
    )


def _is_forwarded(
    elf: ElfFile,
    function: AllocatorFunction,
    symbol: FunctionSymbol,
    owners: dict[int, AllocatorFunction],
    chosen: Sequence[tuple[AllocatorFunction, FunctionSymbol]],
) -> bool:
    """Whether a call of symbol always becomes a call of another probed function of the same kind."""
    addresses, name = follow_jumps(elf, symbol.vaddr)
    targets = [owners[address] for address in addresses if address in owners and address != symbol.vaddr]
    targets += [owner for owner, other in chosen if other.name == name and other.vaddr != symbol.vaddr]
    return any(
        target is function or not (target.has_return_probe or function.has_return_probe) for target in targets
    )


def follow_jumps(elf: ElfFile, vaddr: int) -> tuple[set[int], str]:
    """The addresses that a function's first instructions jump to, and the name behind a PLT entry.

    Empty and "" for a function with other instructions first.
    """
    arch = PROBED_ARCHES[elf.machine]
    passed: set[int] = set()
    for _ in range(_HOPS_MAX):
        offset = elf.file_offset(vaddr)
        code = elf.bytes_from(offset, _STUB_BYTES) if offset is not None else b""
        decoded = [item for item in arch.decode(code, vaddr) if item.mnemonic != arch.landing]
        if decoded and decoded[0].flow is Flow.JUMP and decoded[0].target is not None:
            vaddr = decoded[0].target
            passed.add(vaddr)
            continue
        slot = _slot(decoded)
        return passed, "" if slot is None else _name_in_slot(elf, slot)
    return passed, ""


def _slot(stub: list[Instruction]) -> int | None:
    """The slot of the global offset table through which a PLT entry jumps."""
    if not stub:
        return None
    through = stub[0].memory[0] if stub[0].memory else None
    if stub[0].flow is Flow.JUMP and through is not None and through.base == "rip":
        return stub[0].end + through.displacement
    if [item.mnemonic for item in stub[:2]] != ["adrp", "ldr"] or not any(
        item.flow is Flow.JUMP and item.is_indirect for item in stub[2:4]
    ):
        return None
    page, loaded = stub[0].operands.partition("#")[2], stub[1].memory[0]
    return int(page, 0) + loaded.displacement if loaded.base in stub[0].writes else None


def _name_in_slot(elf: ElfFile, slot_vaddr: int) -> str:
    """The symbol whose address the dynamic linker writes into a slot of the global offset table."""
    for table in elf.relocations():
        for symbol in table["symbol"][table["offset"] == slot_vaddr].tolist():
            if symbol:
                return elf.dynamic_symbol_name(symbol)
    return ""
