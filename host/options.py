"""The words of the command line: values with units, and the options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memleak_android.host.analysis import LeakLimit

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:  # a generic class only in newer releases of click
    IntType = click.ParamType[int, Any]
    FloatType = click.ParamType[float, Any]
    LimitType = click.ParamType[LeakLimit, Any]
else:
    IntType = FloatType = LimitType = click.ParamType

_DURATION_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_SIZE_UNITS = {"": 1, "B": 1, "K": 2**10, "KiB": 2**10, "M": 2**20, "MiB": 2**20, "G": 2**30, "GiB": 2**30}
_SIZE_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9}
_SIZE_UNIT_BY_NAME = {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()}
_MAX = 2**64 - 1


class Duration(IntType):
    """A length of time, in nanoseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h)", str(value).strip())
        result = float(match[1]) * _DURATION_UNITS[match[2]] if match else -1
        if not 0 <= result <= _MAX:
            self.fail(f"{value!r} is no time (write 500ms, 5s or 2m)", param, ctx)
        return round(result)


class Size(IntType):
    """An amount of memory, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", str(value).strip())
        factor = _SIZE_UNIT_BY_NAME.get(match[2].lower()) if match else None
        result = int(match[1]) * factor if match and factor else -1
        if match and factor and result > _MAX:
            self.fail(f"{value!r} is more than an address space holds", param, ctx)
        if result < 0:
            self.fail(f"{value!r} is no size (write 4096, 64K or 1MiB)", param, ctx)
        return result


class Limit(LimitType):
    """BYTES or BYTES,COUNT."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LeakLimit:
        if isinstance(value, LeakLimit):
            return value
        space, comma, objects = str(value).partition(",")
        if comma and not objects.strip().isdecimal():
            self.fail(f"{value!r} is no limit (write 64K or 64K,100)", param, ctx)
        return LeakLimit(SIZE.convert(space, param, ctx), int(objects) if comma else None)


class Share(FloatType):
    """A part of a whole: 0.1% or 0.001."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            result = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            result = -1.0
        if not 0 <= result <= 1:
            self.fail(f"{value!r} is no share (write 0.1% or 0.001)", param, ctx)
        return result


DURATION, SIZE, LIMIT, SHARE = Duration(), Size(), Limit(), Share()
FILE = click.Path(path_type=Path)


def _stack(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order given."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


device_options = _stack(
    click.option("-s", "--serial", metavar="ID", help="On this device (adb's serial; ANDROID_SERIAL)."),
    click.option("-d", "usb", is_flag=True, help="On the USB device."),
    click.option("-e", "tcp", is_flag=True, help="On the emulator or TCP device."),
)

target_options = _stack(
    device_options,
    click.option("--pid", type=click.IntRange(1, 2**31 - 1), metavar="N", help="Attach to this process."),
    click.option("-p", "--package", metavar="APP", help="Attach to this app on a device."),
    click.option("--process", metavar="NAME", help="Which of its processes: a name, or :remote."),
    click.option("--user", type=click.IntRange(0, 21473), default=0, metavar="N", help="Android user."),
    click.option("--launch", is_flag=True, help="Start the app anew and measure from there on."),
    click.option("--wait", is_flag=True, help="Wait until the process of the app is there."),
    click.option("--follow", is_flag=True, help="Measure its child processes too."),
)

tracer_options = _stack(
    click.option(
        "--tracer",
        type=click.Choice(["auto", "bpf", "preload"]),
        default="auto",
        show_default=True,
        help="auto: bpf where it is allowed, else preload.",
    ),
    click.option(
        "--stack-bytes",
        type=SIZE,
        default=65528,
        metavar="CAP",
        help="At most this much of a stack (65528 at most).",
    ),
    click.option(
        "--sample-bytes",
        type=SIZE,
        default=0,
        metavar="N",
        help="One sample per N bytes; 0 = every allocation. BPF counts every one whatever N is, and sends each stack once.",
    ),
    click.option(
        "--every-stack", is_flag=True, help="Send the stack of every allocation, not once per kind."
    ),
    click.option(
        "--max-live",
        type=click.IntRange(1, 2**31),
        default=4_000_000,
        metavar="N",
        help="Blocks the table takes.",
    ),
    click.option("-O", "--object", "object_", metavar="LIB", help="The library that holds the allocator."),
    click.option(
        "--symbols-prefix", default="", metavar="P", help="Prefix of the allocator's functions (je_)."
    ),
    click.option(
        "--wa-missing-free",
        is_flag=True,
        help="Always on: a block ends when its address is handed out again.",
    ),
    click.option("--mmap", is_flag=True, help="Also the regions of mmap, as a kind of their own."),
    click.option(
        "--perf-events", is_flag=True, hidden=True, help="BPF as on kernels without its ring buffer."
    ),
    click.option("--duration", type=DURATION, metavar="T", help="End after this time."),
)

view_options = _stack(
    click.option("-z", "--min-size", type=SIZE, default=0, help="Show only blocks of at least this size."),
    click.option(
        "-Z", "--max-size", type=SIZE, default=2**64 - 1, help="Show only blocks of at most this size."
    ),
    click.option(
        "-T", "--top", type=click.IntRange(0), default=10, show_default=True, help="Stacks shown; 0 = all."
    ),
    click.option("-a", "--show-allocs", is_flag=True, help="Show each block of a stack."),
    click.option("--combined-only", is_flag=True, help="Only sums per stack, no single blocks."),
    click.option(
        "--sort",
        type=click.Choice(["size", "count"]),
        default="size",
        show_default=True,
        help="Order of stacks.",
    ),
)

result_options = _stack(
    click.option(
        "--symbols", type=FILE, multiple=True, metavar="DIR", help="Unstripped files, found by build-id."
    ),
    click.option(
        "--fail-on-leak", type=LIMIT, metavar="BYTES[,COUNT]", help="Exit with 23 when more is held."
    ),
    click.option(
        "--max-lost", type=SHARE, default=0.001, metavar="SHARE", help="Above this: incomplete, exit 6."
    ),
)

common_options = _stack(
    click.option("--force", is_flag=True, help="Overwrite existing files."),
    click.option("-q", "--quiet", is_flag=True, help="No progress."),
    click.option("-v", "--verbose", is_flag=True, help="Say more; show tracebacks."),
)
