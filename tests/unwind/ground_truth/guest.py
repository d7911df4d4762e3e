"""An emulated process of another architecture: programs run in it instruction by instruction, and are sampled."""

import ctypes
import random
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memleak_android.unwind import AddressSpace
from tests.unwind.ground_truth.guest_cpu import CPUS, is_thumb, new_engine, signal_frame, unicorn
from tests.unwind.ground_truth.guest_memory import LAYOUTS, GuestMemory
from tests.unwind.ground_truth.guest_program import load, start_stack
from tests.unwind.ground_truth.shadow_stack import Recorded, Recorder, library
from tests.unwind.ground_truth.system_calls import SystemCalls

_SA_ONSTACK, _SA_RESTORER = 0x0800_0000, 0x0400_0000
_NEVER = 0xFFFF_FFFF_FFFF_0000
_DELIVERED = (10, 12, 14)  # SIGUSR1, SIGUSR2, SIGALRM: those that a program may be sent for no reason
_EXCP_SWI = 2  # the emulator's number of svc
_SIGNAL_EVERY = 4000  # instructions, on average, while a handler is installed


@dataclass(frozen=True, slots=True)
class Sampling:
    """mean: instructions between samples. first_visits: share of instructions sampled when they first run.

    instructions: at most that many run. slice_max: bytes of stack per sample.
    """

    mean: int = 1000
    first_visits: float = 0.0
    instructions: int = 20_000_000
    capacity: int = 20_000
    slice_max: int = 1 << 14
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a program. spaces: its address spaces in time; Recorded.space counts them."""

    arch: str
    recorded: Recorded
    spaces: list[AddressSpace]
    output: bytes
    exit_code: int | None
    executed: int


@dataclass(frozen=True, slots=True)
class _Handler:
    address: int
    flags: int
    restorer: int


class Guest:
    """One process. root: the folder that it takes for /.

    vdso: a library with the symbol sigreturn, for handlers that bring no code of their own to return to (arm64).
    """

    def __init__(self, arch: str, root: Path, sampling: Sampling, vdso: Path | None = None) -> None:
        self.cpu = CPUS[arch]
        self.memory = GuestMemory(LAYOUTS[arch])
        self.engine = new_engine(self.cpu)
        self._root = root
        self._vdso = vdso
        self._trampoline = 0
        self._sampling = sampling
        self._random = random.Random(sampling.seed)
        self._handlers: dict[int, _Handler] = {}
        self._interrupted: list[Any] = []
        self._is_returning = False
        self._signal_stack = 0, 0
        self._recorder = Recorder(
            len(self.cpu.registers), sampling.capacity, sampling.capacity * min(sampling.slice_max, 8192)
        )
        self._shadow = self._recorder.struct
        self._address = ctypes.addressof(self._shadow)
        extra = {
            "rt_sigaction": self._sigaction,
            "rt_sigreturn": self._sigreturn,
            "sigaltstack": self._sigaltstack,
            "tgkill": lambda *_: 0,
            "set_tls": self._set_tls,
        }
        self._calls = SystemCalls(arch, self.memory, root, extra)
        self._set_up()

    def _set_up(self) -> None:
        memory, shadow, sampling = self.memory, self._shadow, self._sampling
        for i, region in enumerate(memory.regions()):
            self.engine.mem_map_ptr(
                region.start, region.end - region.start, unicorn.UC_PROT_ALL, region.bytes
            )
            shadow.regions[i] = region
        shadow.regions_count = len(memory.regions())
        for i, number in enumerate(self.cpu.registers):
            shadow.registers[i] = number
        shadow.is_arm32 = self.cpu.word_bytes == 4
        shadow.sp_register, shadow.lr_register = self.cpu.sp, self.cpu.lr
        shadow.stack_low, shadow.stack_high = memory.stack_low, memory.stack_high
        shadow.slice_max, shadow.mean = sampling.slice_max, sampling.mean
        shadow.random, shadow.sample_at = 0x9E3779B9 * sampling.seed, sampling.mean
        shadow.first_visits = int(sampling.first_visits * 0x10000)
        shadow.stop_at = sampling.instructions
        callback = ctypes.cast(library().shadow_on_instruction, ctypes.c_void_p)
        engine_library = unicorn.unicorn_py3.unicorn.uclib
        handle = ctypes.c_size_t()
        status = engine_library.uc_hook_add(
            self.engine._uch, ctypes.byref(handle), unicorn.UC_HOOK_CODE, callback, ctypes.c_void_p(self._address),
            ctypes.c_uint64(1), ctypes.c_uint64(0),
        )  # fmt: skip
        assert status == 0, f"uc_hook_add failed: {status}"
        self.engine.hook_add(unicorn.UC_HOOK_INTR, self._on_interrupt)

    def run(self, program: Path, arguments: list[str], environment: list[str]) -> Run:
        """Runs a program to its end or to the limit of instructions."""
        loaded = load(self.memory, program)
        interpreter = (
            load(self.memory, self._root / loaded.interpreter.lstrip("/")) if loaded.interpreter else None
        )
        if self._vdso is not None:
            self._trampoline = load(self.memory, self._vdso).entry
        sp = start_stack(self.memory, loaded, interpreter, [str(program), *arguments], environment)
        self.engine.reg_write(self.cpu.sp, sp)
        pc = interpreter.entry if interpreter else loaded.entry
        self._shadow.next = pc & ~1
        self._sync_space()
        while self._calls.exit_code is None and self._shadow.executed < self._sampling.instructions:
            self.engine.emu_start(pc, _NEVER & (1 << 8 * self.cpu.word_bytes) - 1)
            pc = self._stopped()
        self._calls.close_all()
        return Run(
            self.cpu.name, self._recorder.recorded(), self.memory.spaces, bytes(self._calls.output),
            self._calls.exit_code, self._shadow.executed,
        )  # fmt: skip

    def _sync_space(self) -> None:
        self._shadow.space = len(self.memory.spaces) - 1

    def _on_interrupt(self, engine: Any, number: int, _: object) -> None:
        if number != _EXCP_SWI:
            raise RuntimeError(
                f"exception {number} at {engine.reg_read(self.cpu.pc):#x}: the guest has crashed"
            )
        values = [engine.reg_read(r) for r in (self.cpu.call_number, *self.cpu.arguments)]
        result = self._calls.call(values[0], values[1:])
        self._sync_space()
        if result is not None:
            engine.reg_write(self.cpu.arguments[0], result & (1 << 8 * self.cpu.word_bytes) - 1)
        if self._calls.exit_code is not None or self._is_returning:
            engine.emu_stop()

    def _pc(self) -> int:
        pc = int(self.engine.reg_read(self.cpu.pc))
        return pc | 1 if is_thumb(self.cpu, self.engine) else pc

    # ---- signals --------------------------------------------------------------------------------

    def _set_tls(self, value: int, *_: int) -> int:
        self.engine.reg_write(self.cpu.thread_pointer, value)
        return 0

    def _sigaction(self, signal: int, new: int, old: int, *_: int) -> int:
        word = self.memory.layout.word_bytes
        if old:
            self.memory.write(old, bytes(3 * word + 8))
        if new:
            address, flags, restorer = struct.unpack(
                "<3Q" if word == 8 else "<3I", self.memory.read(new, 3 * word)
            )
            self._handlers.pop(signal, None)
            if address > 1 and signal in _DELIVERED:
                self._handlers[signal] = _Handler(address, flags, restorer)
                self._next_signal()
        return 0

    def _sigaltstack(self, new: int, old: int, *_: int) -> int:
        word = self.memory.layout.word_bytes
        if old:
            self.memory.write(old, bytes(3 * word))
        if new:
            low, size = self.memory.word(new), self.memory.word(new + 2 * word)
            self._signal_stack = low, low + size
            self._shadow.other_low, self._shadow.other_high = low, low + size
        return 0

    def _next_signal(self) -> None:
        after = self._random.randrange(1, 2 * _SIGNAL_EVERY)
        self._shadow.stop_at = min(self._shadow.executed + after, self._sampling.instructions)

    def _stopped(self) -> int:
        """After the emulator stopped: returns from a handler, or enters one. The pc to go on at."""
        if self._is_returning:
            self._is_returning = False
            self.engine.context_restore(self._interrupted.pop())
            pc = self._pc()
            library().shadow_resume(self._address, pc & ~1 if self.cpu.word_bytes == 4 else pc)
            self._next_signal()
            return pc
        if self._calls.exit_code is not None or self._shadow.executed >= self._sampling.instructions:
            return 0
        self._shadow.stop_at = self._sampling.instructions
        return self._interrupt() if self._handlers else self._pc()

    def _interrupt(self) -> int:
        signal = self._random.choice(sorted(self._handlers))
        handler, cpu, engine = self._handlers[signal], self.cpu, self.engine
        values = [engine.reg_read(r) for r in cpu.registers]
        sp, interrupted = engine.reg_read(cpu.sp), values[cpu.registers.index(cpu.pc)]
        low, high = self._signal_stack
        top = high if handler.flags & _SA_ONSTACK and high and not low <= sp < high else sp
        self._interrupted.append(engine.context_save())
        at, body, registers = signal_frame(cpu, values, top, signal, handler.flags)
        self.memory.write(at, body)
        for number, value in registers.items():
            engine.reg_write(number, value)
        back = handler.restorer if handler.flags & _SA_RESTORER else self._trampoline
        engine.reg_write(cpu.lr, back)
        library().shadow_push(self._address, interrupted, sp, 1)
        library().shadow_push(self._address, back, at, 0)
        self._shadow.next = handler.address & ~1 if cpu.word_bytes == 4 else handler.address
        return handler.address

    def _sigreturn(self, *_: int) -> None:
        self._is_returning = True
