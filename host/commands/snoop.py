"""`snoop`: every call of chosen functions, and how long each took."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from memleak_android.host.commands.options import DURATION, FILE, common_options, device_options
from memleak_android.host.commands.snoop_machine import SnoopMachine, chosen_machine
from memleak_android.host.console import Invocation, say
from memleak_android.host.errors import OutputExistsError, UsageError
from memleak_android.host.session.interrupts import stop_on_interrupt
from memleak_android.host.snoop.agent_lines import SnoopOptions
from memleak_android.host.snoop.call_stacks import CallStacks
from memleak_android.host.snoop.chrome_trace import ChromeTrace
from memleak_android.host.snoop.filters import parse_filter
from memleak_android.host.snoop.formats import CallFormat, parse_call_format
from memleak_android.host.snoop.json_lines import JsonLines
from memleak_android.host.snoop.live_print import LivePrint
from memleak_android.host.snoop.planning import Planned, Wishes, plan_snoop
from memleak_android.host.snoop.session import CallSink, SnoopSession, SnoopTimes
from memleak_android.host.snoop.statistics import FunctionStatistics
from memleak_android.host.snoop.statistics_table import histogram_lines, table_lines
from memleak_android.host.stacks.modules import ModuleFiles
from memleak_android.host.symbols.symbolizer import Symbolizer, default_cache_dir
from memleak_android.host.tracers.functions.requests import parse_request, read_group_file
from memleak_android.unwind.cfi.table_cache import TableCache

_INCOMPLETE = 6
_STACK_BYTES = 16384  # of one call, at most


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@device_options
@click.option("-p", "--package", metavar="APP", help="A process of this app on a device.")
@click.option("--process", metavar="NAME", help="Which of its processes: a name, or :remote.")
@click.option("--user", type=click.IntRange(0, 21473), default=0, metavar="N", help="Android user.")
@click.option("--pid", "pids", type=click.IntRange(1, 2**31 - 1), multiple=True, metavar="N", help="A process; may be given several times.")  # fmt: skip
@click.option("--tid", "threads", type=click.IntRange(1, 2**31 - 1), multiple=True, metavar="N", help="Only this thread.")  # fmt: skip
@click.option("-f", "--function", "functions", multiple=True, metavar="LIB:FUNC", help="A function: a name, demangled or not, a glob, or +0xOFFSET. Without LIB: of the program itself.")  # fmt: skip
@click.option(
    "--group", "groups", type=FILE, multiple=True, metavar="FILE", help="Functions from a TOML file."
)
@click.option("--arguments", "formats", multiple=True, metavar="[GLOB=]FORMAT", help="How values are shown: int,str,buf64,fd->int.")  # fmt: skip
@click.option(
    "--filter", "filters", multiple=True, metavar="[GLOB:]ARG<OP>N", help="Only calls like arg0>4096."
)
@click.option(
    "--rate", type=click.IntRange(1), metavar="N", help="Show at most N calls of a function a second."
)
@click.option("--max-matches", type=click.IntRange(1, 4096), default=256, show_default=True, metavar="N", help="Functions that one --function may mean.")  # fmt: skip
@click.option("--returns", type=click.Choice(["auto", "trampoline", "instructions", "none"]), default="auto", show_default=True, help="How returns are seen: by the kernel's trampoline, which exceptions cannot pass, or at the instructions that return.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Its child processes too.")
@click.option("--entries", is_flag=True, help="A line at the entry too.")
@click.option("--stacks", is_flag=True, help="The stack of each call that is shown.")
@click.option(
    "--statistics", is_flag=True, help="Only count: no call is shown, none need cross to this program."
)
@click.option("--histogram", is_flag=True, help="The latency of each function by powers of two.")
@click.option("--interval", type=DURATION, metavar="T", help="Print the statistics every T.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N interval prints.")
@click.option("--duration", type=DURATION, metavar="T", help="End after this time.")
@click.option(
    "--json", "json_", type=FILE, metavar="FILE|-", help="Every event as a line of JSON; - is stdout."
)
@click.option("--format", "format_", type=click.Choice(["chrome"]), help="A trace for chrome://tracing or Perfetto; needs -o.")  # fmt: skip
@click.option("-o", "output", type=FILE, metavar="FILE", help="Where --format writes.")
@click.option(
    "--symbols",
    type=FILE,
    multiple=True,
    metavar="DIR",
    help="Unstripped files, found by build-id: a folder, a file, an APK, AAB or zip.",
)
@click.option(
    "--without-multi", is_flag=True, hidden=True, help="One perf event a probe, as before Linux 6.10."
)
@click.option("--without-atomics", is_flag=True, hidden=True, help="As before Linux 5.12.")
@click.option("--without-cookies", is_flag=True, hidden=True, help="By address, as before Linux 5.15.")
@common_options
@click.pass_obj
def snoop(invocation: Invocation, /, **given: Any) -> int:
    """Shows every call of chosen functions: arguments, return value, latency; and statistics at the end."""
    command = _check(invocation, given)
    begin = time.monotonic()
    with ExitStack() as files:
        machine = chosen_machine(invocation, given, files)
        looked_at = machine.files(given["pids"], command)
        given["pids"] = tuple(one[0].pid for one in looked_at if one and one[0].pid)
        planned = plan_snoop(_wishes(given), looked_at, machine.opened, machine.throws)
        for sentence in planned.problems:
            say(sentence)
        outputs = _outputs(given, planned, machine, files)
        session = SnoopSession(
            machine.start(_options(given, command, bool(outputs.sinks)), planned.plan),
            planned.plan,
            outputs.sinks,
            SnoopTimes(given["duration"], given["interval"], given["count"]),
            on_armed=lambda n: _say_armed(given, planned, n, time.monotonic() - begin),
            on_interval=lambda found: _print_statistics(found, outputs, given["histogram"]),
            on_problem=say,
            stacks=_stacks(given, machine, files),
        )
        with stop_on_interrupt(session.stop):
            session.run()
        if outputs.json is not None:
            outputs.json.write_end(session.statistics, session.lost)
        _print_statistics(session.statistics, outputs, given["histogram"])
        for sentence in session.missing:
            say(sentence)
    return _INCOMPLETE if set(session.lost) - {"missed_entry"} else 0


@dataclass(slots=True)
class _Outputs:
    """text: whether lines for people go to stdout. json: gets the statistics too."""

    sinks: list[CallSink]
    text: bool
    json: JsonLines | None = None


def _check(invocation: Invocation, given: dict[str, Any]) -> tuple[str, ...]:
    """The command, () = none. Raises UsageError for what contradicts itself."""
    command = invocation.command
    if command is not None and not command:
        raise click.UsageError("no command behind --; write -- CMD and its arguments")
    if command and given["pids"]:
        raise click.UsageError("both --pid and a command; name one target")
    if given["package"] and (command or given["pids"]):
        raise click.UsageError(f"--package and {'a command' if command else '--pid'}; name one target")
    if not command and not given["pids"] and not given["package"]:
        raise click.UsageError("no target; name one by --pid N, --package APP or -- CMD")
    if not given["functions"] and not given["groups"]:
        raise click.UsageError("no function; name one by --function LIB:FUNC or --group FILE")
    if bool(given["format_"]) != bool(given["output"]):
        raise click.UsageError("--format and -o belong together; write --format chrome -o FILE")
    if given["statistics"] and (given["json_"] or given["format_"] or given["stacks"]):
        raise click.UsageError("--statistics shows no call; leave it out for --json, --format and --stacks")
    if given["follow"] and len(given["pids"]) > 1:
        raise click.UsageError("--follow with several processes; follow one")
    if given["follow"] and given["stacks"]:
        raise click.UsageError("--follow and --stacks; the mappings of children are not known, leave one out")
    if given["count"] is not None and given["interval"] is None:
        raise click.UsageError("--count without --interval; say how often by --interval T")
    return command or ()


def _wishes(given: dict[str, Any]) -> Wishes:
    requests = [parse_request(text) for text in given["functions"]]
    for path in given["groups"]:
        requests += read_group_file(path)
    return Wishes(
        tuple(requests),
        tuple(_format(text) for text in given["formats"]),
        tuple(parse_filter(text) for text in given["filters"]),
        given["returns"],
        given["max_matches"],
        given["symbols"],
    )


def _format(text: str) -> tuple[str, CallFormat]:
    glob, equals, words = text.partition("=")
    return (glob, parse_call_format(words)) if equals else ("*", parse_call_format(text))


def _options(given: dict[str, Any], command: tuple[str, ...], has_sinks: bool) -> SnoopOptions:
    return SnoopOptions(
        pids=given["pids"],
        command=command,
        threads=given["threads"],
        events=has_sinks,
        rate=given["rate"] or 0,
        follow=given["follow"],
        stack_bytes=_STACK_BYTES if given["stacks"] else 0,
        without_multi=given["without_multi"],
        without_cookies=given["without_cookies"],
        without_atomics=given["without_atomics"],
    )


def _outputs(given: dict[str, Any], planned: Planned, machine: SnoopMachine, files: ExitStack) -> _Outputs:
    functions = planned.plan.functions
    outputs = _Outputs([], text=True)
    if given["json_"] is not None:
        is_stdout = str(given["json_"]) == "-"
        file = (
            sys.stdout.buffer if is_stdout else files.enter_context(_create(given["json_"], given["force"]))
        )
        outputs.json = JsonLines(functions, file)
        outputs.sinks.append(outputs.json)
        outputs.text = not is_stdout
    if given["format_"] == "chrome":
        file = files.enter_context(_create(given["output"], given["force"]))
        outputs.sinks.append(ChromeTrace(functions, machine.names(), file))
    if not outputs.sinks and not given["statistics"]:
        outputs.sinks.append(LivePrint(functions, sys.stdout, given["entries"]))
    return outputs


def _stacks(given: dict[str, Any], machine: SnoopMachine, files: ExitStack) -> CallStacks | None:
    if not given["stacks"]:
        return None
    cache = default_cache_dir()
    modules = files.enter_context(closing(ModuleFiles(machine.finder, TableCache(cache / "tables"))))
    return CallStacks(modules, Symbolizer(given["symbols"], cache))


def _create(path: Path, force: bool) -> BinaryIO:
    try:
        return open(path, "wb" if force else "xb")
    except FileExistsError:
        raise OutputExistsError(path) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _say_armed(given: dict[str, Any], planned: Planned, n_places: int, seconds: float) -> None:
    if given["quiet"]:
        return
    dear = planned.plan.n_single_stepped
    say(
        f"{n_places:,} of {planned.plan.n_entries:,} functions probed after {seconds:.1f} s"
        + (
            f"; {dear} functions cost several times more, their first instructions are single-stepped"
            * bool(dear)
        )
        + "; Ctrl-C ends"
    )


def _print_statistics(functions: list[FunctionStatistics], outputs: _Outputs, with_histogram: bool) -> None:
    if not outputs.text:
        return
    lines = table_lines(functions)
    if with_histogram:
        lines += [line for one in functions for line in histogram_lines(one)]
    print("\n".join(lines), flush=True)
