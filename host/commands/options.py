"""The options that several verbs share. Each group reaches its command as one frozen dataclass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from memleak_android.host.analysis.pipeline import View
from memleak_android.host.commands.values import DURATION, FILE, LABEL, LIMIT, RATE, SHARE, SIZE
from memleak_android.host.profile.gate import LeakLimit
from memleak_android.host.profile.growth_gate import GrowthLimit
from memleak_android.host.profile.sort_orders import WEIGHTS, Sort
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.tracers.local.start import TracerName

SERIALS = "memleak_android.serials"  # in a context's meta: every --serial

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


def option_group(name: str, kind: type, *options: Decorator) -> Callable[[F], F]:
    """Declares `options` and collects their values into the command's parameter `name`.

    kind: a dataclass with a field for each option. Options are shown in this order.
    """
    names = [each.name for each in fields(kind)]

    def decorate(function: F) -> Any:
        @wraps(function)
        def command(*arguments: Any, **values: Any) -> Any:
            group = kind(**{each: values.pop(each) for each in names})
            return function(*arguments, **values, **{name: group})

        return _stack(*options)(command)

    return decorate


def _stack(*decorators: Decorator) -> Decorator:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def flag(*names: str, help: str, hidden: bool = False) -> Decorator:
    return click.option(*names, is_flag=True, help=help, hidden=hidden)


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Names a device."""

    serial: str | None = None
    usb: bool = False
    tcp: bool = False


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options that select the target, apart from a command behind `--`."""

    device: DeviceOptions = field(default_factory=DeviceOptions)
    pid: int | None = None
    package: str | None = None
    process: str | None = None
    user: int = 0
    launch: bool = False
    wait: bool = False
    every_process: bool = False
    follow: bool = False
    kernel: bool = False
    percpu: bool = False
    without_btf: bool = False
    max_stacks: int | None = None


@dataclass(frozen=True, slots=True)
class TracingOptions:
    """How allocations are traced. Sizes in bytes, times in nanoseconds."""

    tracer: TracerName
    unwind: str
    stack_bytes: int
    sample_bytes: int
    every_stack: bool
    extend_stacks: bool
    adaptive: bool
    evidence_after: int
    max_live: int | None
    library: str | None
    symbols_prefix: str
    wa_missing_free: bool
    mmap: bool
    pairs: tuple[str, ...]
    perf_events: bool
    without_multi: bool
    duration: int | None


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options that select the contents of a report."""

    min_size: int
    max_size: int
    top: int
    show_allocs: bool
    combined_only: bool
    sort: Sort
    warmup: int
    cooldown: int

    def view(self, max_lost: float, *, needs_blocks: bool) -> View:
        """Returns the analysis's settings. needs_blocks: the report's format lists single blocks."""
        return View(
            min_size=self.min_size,
            max_size=self.max_size,
            show_allocs=self.show_allocs or needs_blocks,
            max_lost=max_lost,
            warmup_ns=self.warmup,
            cooldown_ns=self.cooldown,
        )

    def report_options(self, source_root: str = "") -> ReportOptions:
        return ReportOptions(
            self.top, self.show_allocs, self.sort, self.combined_only, source_root=source_root
        )


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Symbols, and what makes a result fail."""

    symbols: tuple[Path, ...]
    fail_on_leak: LeakLimit | None
    fail_on_growth: GrowthLimit | None
    baseline: Path | None
    suppressions: tuple[Path, ...]
    gen_suppressions: Path | None
    max_lost: float


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Of nearly every verb."""

    force: bool = False
    quiet: bool = False
    verbose: bool = False


def _last_serial(context: click.Context, option: click.Parameter, serials: tuple[str, ...]) -> str | None:
    """`record` finds all of them in the context's meta."""
    context.meta[SERIALS] = serials
    if len(serials) > 1 and context.command.name != "record":
        raise click.UsageError(
            f"{len(serials)} times --serial; several devices at once are measured by `record`"
        )
    return serials[-1] if serials else None


symbols_option = click.option(
    "--symbols",
    type=FILE,
    multiple=True,
    metavar="DIR",
    help="Unstripped files, found by build-id: a folder, a file, an APK, .apks, AAB or zip.",
)

top_option = click.option(
    "-T", "--top", type=click.IntRange(0), default=10, show_default=True, help="Stacks shown; 0 = all."
)

warmup_option = click.option(
    "--warmup", type=DURATION, default="0s", metavar="T", help="Judge growth from this time on."
)

cooldown_option = click.option(
    "--cooldown",
    type=DURATION,
    default="0s",
    metavar="T",
    help="Judge growth until this long before the end.",
)

duration_option = click.option("--duration", type=DURATION, metavar="T", help="End after this time.")

device_options = option_group(
    "device",
    DeviceOptions,
    click.option(
        "-s",
        "--serial",
        metavar="ID",
        multiple=True,
        callback=_last_serial,
        help="On this device (adb's serial; ANDROID_SERIAL).",
    ),
    flag("-d", "usb", help="On the USB device."),
    flag("-e", "tcp", help="On the emulator or TCP device."),
)

app_options = _stack(
    click.option("-p", "--package", metavar="APP", help="Attach to this app on a device."),
    click.option("--process", metavar="NAME", help="Which of its processes: a name, or :remote."),
    click.option("--user", type=click.IntRange(0, 21473), default=0, metavar="N", help="Android user."),
)

target_options = option_group(
    "target",
    TargetOptions,
    device_options,
    click.option("--pid", type=click.IntRange(1, 2**31 - 1), metavar="N", help="Attach to this process."),
    app_options,
    flag("--launch", help="Start the app anew and measure from its start."),
    flag("--wait", help="Wait until a process of the app runs."),
    flag(
        "--all",
        "every_process",
        help="Every process of this machine, future ones included, with a table of them (docs/use/every-process.md).",
    ),
    flag("--follow", help="Measure its child processes too."),
    flag(
        "--kernel",
        help="The kernel's own memory, of the whole machine or on behalf of --pid, --package or a command (docs/use/kernel-memory.md).",
    ),
    flag("--percpu", help="The kernel's per-CPU memory, alone or in addition to --kernel."),
    flag("--without-btf", hidden=True, help="--kernel as on kernels without BTF."),
    click.option(
        "--max-stacks",
        type=click.IntRange(1, 1 << 20),
        metavar="N",
        hidden=True,
        help="--kernel: kernel stacks that are kept apart at a time.",
    ),
)

label_option = click.option(
    "--label",
    "labels",
    type=LABEL,
    multiple=True,
    metavar="KEY=VALUE",
    help="Stored in the recording, to distinguish many (repeatable). version, model, api_level and abi replace unknown facts of the target.",
)

tracer_options = option_group(
    "tracing",
    TracingOptions,
    click.option(
        "--tracer",
        type=click.Choice(["auto", "bpf", "preload", "plt", "inline", "bcc"]),
        default="auto",
        show_default=True,
        help="auto: bpf where it is allowed, else preload for a command and plt for a running process."
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
        help="One sample per N bytes; 0 = every allocation. BPF always counts every allocation and sends each stack once.",
    ),
    flag("--every-stack", help="Send the stack of every allocation, not once per stack key."),
    flag(
        "--extend-stacks",
        help="Read stacks longer than --stack-bytes to their end, up to 1 MiB. BPF reads the rest after the call and uses it"
        " only if it provably belongs to the call.",
    ),
    flag("--adaptive", help="Count everything, but send only stacks that hold much or grow (by BPF)."),
    click.option(
        "--evidence-after",
        type=DURATION,
        default="0s",
        metavar="AGE",
        help="Count everything, but send only stacks that have held a block for this long (by BPF).",
    ),
    click.option(
        "--max-live",
        type=click.IntRange(1, 2**31),
        metavar="N",
        help="Capacity of the live table in blocks: 4,000,000, for the kernel 1,000,000.",
    ),
    click.option("-O", "--object", "library", metavar="LIB", help="The library that holds the allocator."),
    click.option(
        "--symbols-prefix", default="", metavar="P", help="Prefix of the allocator's functions (je_)."
    ),
    flag(
        "--wa-missing-free",
        help="Always on: a block ends when its address is allocated again. With --kernel: do not count such frees as lost.",
    ),
    flag("--mmap", help="Also the regions of mmap, as a kind of their own."),
    click.option(
        "--pairs",
        multiple=True,
        metavar="FILE|SET",
        help="Trace what a TOML file describes instead of malloc, or a set: cxx, fd, malloc … (docs/use/pairs.md).",
    ),
    flag("--perf-events", hidden=True, help="BPF as on kernels without its ring buffer."),
    flag("--without-multi", hidden=True, help="A perf event for each probe, as before Linux 6.10."),
    duration_option,
)

view_options = option_group(
    "view",
    ViewOptions,
    click.option("-z", "--min-size", type=SIZE, default=0, help="Show only blocks of at least this size."),
    click.option(
        "-Z", "--max-size", type=SIZE, default=2**64 - 1, help="Show only blocks of at most this size."
    ),
    top_option,
    flag("-a", "--show-allocs", help="Show each block of a stack."),
    flag("--combined-only", help="Only sums per stack, no single blocks."),
    click.option(
        "--sort",
        type=click.Choice(list(WEIGHTS)),
        default="size",
        show_default=True,
        help="Order of stacks. peak: by what they held at the peak. churn: by what they freed.",
    ),
    warmup_option,
    cooldown_option,
)

result_options = option_group(
    "result",
    ResultOptions,
    symbols_option,
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
        help="Count only growth beyond this report.json or recording; without a limit any growth counts.",
    ),
    click.option(
        "--suppressions",
        type=FILE,
        multiple=True,
        metavar="FILE",
        help="Sites that do not count, in LeakSanitizer's syntax (leak:PATTERN).",
    ),
    click.option(
        "--gen-suppressions", type=FILE, metavar="FILE", help="Write suppressions for all sites that count."
    ),
    click.option(
        "--max-lost", type=SHARE, default=0.001, metavar="SHARE", help="Above this: incomplete, exit 6."
    ),
)

common_options = option_group(
    "common",
    CommonOptions,
    flag("--force", help="Overwrite existing files."),
    flag("-q", "--quiet", help="No progress."),
    flag("-v", "--verbose", help="Print more; show tracebacks."),
)
