"""The words of the command line: values with units, and the options that several verbs share."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memleak_android.host.profile.gate import LeakLimit
from memleak_android.host.profile.growth_gate import GrowthLimit
from memleak_android.host.profile.sort_orders import WEIGHTS

SERIALS = "memleak_android.serials"  # in a context's meta: every --serial

F = TypeVar("F", bound=Callable[..., Any])

if TYPE_CHECKING:  # a generic class only in newer releases of click
    IntType = click.ParamType[int, Any]
    FloatType = click.ParamType[float, Any]
    LimitType = click.ParamType[LeakLimit, Any]
    RateType = click.ParamType[GrowthLimit, Any]
    LabelType = click.ParamType[tuple[str, str], Any]
else:
    IntType = FloatType = LimitType = RateType = LabelType = click.ParamType

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


class Rate(RateType):
    """SIZE/s, SIZE/min, SIZE/h or, of a scenario, SIZE/run."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> GrowthLimit:
        if isinstance(value, GrowthLimit):
            return value
        space, _, per = str(value).partition("/")
        seconds = {"s": 1.0, "min": 60.0, "h": 3600.0, "run": 1.0}.get(per.strip())
        if seconds is None:
            self.fail(f"{value!r} is no rate (write 100K/min, 1MB/h or, of a scenario, 64/run)", param, ctx)
        return GrowthLimit(SIZE.convert(space, param, ctx) / seconds, per.strip() == "run")


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


class Label(LabelType):
    """KEY=VALUE."""

    name = "label"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z][\w.-]{0,39}", name) or len(text) > 200:
            self.fail(f"{value!r} is no label (write version=1.2; 200 characters at most)", param, ctx)
        return name, text


DURATION, SIZE, LIMIT, RATE, SHARE, LABEL = Duration(), Size(), Limit(), Rate(), Share(), Label()
FILE = click.Path(path_type=Path)


def _stack(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, shown in the order given."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _one_serial(context: click.Context, option: click.Parameter, serials: tuple[str, ...]) -> str | None:
    """`record` finds all of them in the context's meta."""
    context.meta[SERIALS] = serials
    if len(serials) > 1 and context.command.name != "record":
        raise click.UsageError(
            f"{len(serials)} times --serial; several devices at once are measured by `record`"
        )
    return serials[-1] if serials else None


device_options = _stack(
    click.option(
        "-s",
        "--serial",
        metavar="ID",
        multiple=True,
        callback=_one_serial,
        help="On this device (adb's serial; ANDROID_SERIAL).",
    ),
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
    click.option(
        "--all",
        "every_process",
        is_flag=True,
        help="Every process of this machine, those to come too, with a table of them (docs/use/every-process.md).",
    ),
    click.option("--follow", is_flag=True, help="Measure its child processes too."),
    click.option(
        "--kernel",
        is_flag=True,
        help="The kernel's own memory, of the whole machine or on behalf of --pid, --package or a command (docs/use/kernel-memory.md).",
    ),
    click.option(
        "--percpu", is_flag=True, help="The kernel's per-CPU memory; with --kernel beside the rest."
    ),
    click.option("--without-btf", is_flag=True, hidden=True, help="--kernel as on kernels without BTF."),
    click.option(
        "--max-stacks",
        type=click.IntRange(1, 1 << 20),
        metavar="N",
        hidden=True,
        help="--kernel: kernel stacks that are told apart at a time.",
    ),
)

label_option = click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    metavar="KEY=VALUE",
    help="Kept in the recording, to tell many apart (repeatable): version, model, api_level and abi stand for what the target does not tell.",
)

tracer_options = _stack(
    click.option(
        "--tracer",
        type=click.Choice(["auto", "bpf", "preload", "plt", "inline", "bcc"]),
        default="auto",
        show_default=True,
        help="auto: bpf where it is allowed, else preload for a command and plt for a process that runs."
        " bcc: compiled here by python3-bpfcc.",
    ),
    click.option(
        "--unwind",
        type=click.Choice(["auto", "cfi", "fp", "both"]),
        default="auto",
        show_default=True,
        help="How stacks are walked: by unwind information (auto), by frame pointers, or by both, compared.",
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
        "--extend-stacks",
        is_flag=True,
        help="Of stacks longer than --stack-bytes the rest, too, up to 1 MiB. By BPF it is read after the call, and used"
        " only if it is proved to be that of the call.",
    ),
    click.option(
        "--adaptive",
        is_flag=True,
        help="Count everything, but send only stacks that hold much or grow (by BPF).",
    ),
    click.option(
        "--evidence-after",
        type=DURATION,
        default="0s",
        metavar="AGE",
        help="Count everything, but send only stacks of which a block has lived for so long (by BPF).",
    ),
    click.option(
        "--max-live",
        type=click.IntRange(1, 2**31),
        metavar="N",
        help="Blocks the table takes; 4,000,000, of the kernel 1,000,000.",
    ),
    click.option("-O", "--object", "object_", metavar="LIB", help="The library that holds the allocator."),
    click.option(
        "--symbols-prefix", default="", metavar="P", help="Prefix of the allocator's functions (je_)."
    ),
    click.option(
        "--wa-missing-free",
        is_flag=True,
        help="Always on: a block ends when its address is handed out again. With --kernel: such frees are no loss.",
    ),
    click.option("--mmap", is_flag=True, help="Also the regions of mmap, as a kind of their own."),
    click.option(
        "--pairs",
        multiple=True,
        metavar="FILE|SET",
        help="Trace what a TOML file describes instead of malloc, or a set: cxx, fd, malloc … (docs/use/pairs.md).",
    ),
    click.option(
        "--perf-events", is_flag=True, hidden=True, help="BPF as on kernels without its ring buffer."
    ),
    click.option(
        "--without-multi",
        is_flag=True,
        hidden=True,
        help="A perf event for each probe, as before Linux 6.10.",
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
        type=click.Choice(list(WEIGHTS)),
        default="size",
        show_default=True,
        help="Order of stacks. peak, churn: first those that held most once, or gave back most.",
    ),
    click.option(
        "--warmup", type=DURATION, default="0s", metavar="T", help="Growth is judged from this time on."
    ),
    click.option(
        "--cooldown",
        type=DURATION,
        default="0s",
        metavar="T",
        help="Growth is judged until so long before the end.",
    ),
)

result_options = _stack(
    click.option(
        "--symbols",
        type=FILE,
        multiple=True,
        metavar="DIR",
        help="Unstripped files, found by build-id: a folder, a file, an APK, .apks, AAB or zip.",
    ),
    click.option(
        "--fail-on-leak", type=LIMIT, metavar="BYTES[,COUNT]", help="Exit with 23 when more is held."
    ),
    click.option(
        "--fail-on-growth",
        type=RATE,
        metavar="RATE",
        help="Exit with 23 when more grows: 100K/min, 1MB/h or, of a scenario, 64/run.",
    ),
    click.option(
        "--baseline",
        type=FILE,
        metavar="REPORT",
        help="Only growth beyond this report.json or recording counts; without a limit any does.",
    ),
    click.option(
        "--suppressions",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="What does not count, in LeakSanitizer's syntax (leak:PATTERN).",
    ),
    click.option(
        "--gen-suppressions", type=FILE, metavar="FILE", help="Write suppressions for all that counts."
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
