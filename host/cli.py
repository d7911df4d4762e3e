"""The command line: finds the verb and turns errors into lines and exit codes, which nothing else does."""

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from itertools import pairwise
from shutil import which
from typing import Any, TextIO

import click

from memleak_android.host import commands
from memleak_android.host.console import PROGRAM, Invocation, say
from memleak_android.host.errors import ExitCode, MemleakError
from memleak_android.unwind.errors import UnwindError
from memleak_android.unwind.file_writing import UnsafePathError, temporary_file

VERBS = (
    *("demo", "devices", "diff", "doctor", "fleet", "mark", "record", "report", "sdk", "snoop"),
    *("trace", "unwind"),
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # write(2): not a bug

_BEFORE_VERB = {"-v", "-vv", "--verbose", "-q", "--quiet"}
_DEVICE = {"-s": 2, "--serial": 2, "-d": 1, "-e": 1}  # words of each; before the verb as with adb
_TARGETS = {"--pid", "--package", "--all", "--kernel", "--percpu"}
_OF_GROUP = {"-h", "--help", "--help-all", "--version", "-V"}
_WORDS_OF_GROUP = {"help": "--help", "version": "--version"}  # as verbs

# The help on one screen; --help-all lists every option.
OVERVIEW = """\
Find native memory leaks: what grows, what is still held, and which code allocated it.

  memleak-android -- ./server --port 80        run a command and watch it
  memleak-android --pid 4711                   watch a running process until Ctrl-C
  memleak-android --package com.example.app    watch an app on a connected device

What to watch    -- CMD · --pid N · -p/--package APP [--launch] [-s ID|-d|-e] · --follow · --all · --kernel
How long         --duration 60 · --scenario CMD --repeat N
While it runs    --live, the whole terminal · --interval 5, the largest stacks every 5 s
The report       -T N · --sort growth|size|count|peak|churn · -v, whole stacks · --symbols DIR · --reachability
Save it          -o DIR or -o x.html|json|pb.gz|speedscope.json|folded|sarif|junit.xml|memleak
Fail a CI job    --fail-on-leak 1MiB · --fail-on-growth 100K/min · --baseline FILE · --suppressions FILE
Cost less        --sample-bytes 64K · --stack-bytes 8K

Then             report FILE, any format of a recording · diff OLD NEW, what is new, grown, gone
                 doctor, what works here · demo, a program with planted leaks
                 record · snoop · mark · devices · fleet · unwind · sdk    (memleak-android VERB --help)

Exit status      the command's own, or 23 a limit is exceeded, 6 incomplete, 5 cannot measure here, 2 usage
                 memleak-android --help-all lists every option
"""

# memleak's own short flags that mean something else here, or nothing: flag → (only with a number, what to use).
_MEMLEAK_FLAGS = {
    "-p": (True, "--pid {0}"),
    "-o": (True, "--older {0}ms (or -o ./{0} for a folder of that name)"),
    "-s": (True, "--sample-bytes, which takes bytes (or --serial {0} for a device of that name)"),
    "-t": (False, "--trace"),
    "-c": (False, "-- CMD"),
    "-C": (False, "--combined-only"),
    "-S": (False, "--symbols-prefix"),
    "-F": (False, "--wa-missing-free, which is always on"),
}
# Other tools' long options: whose they are, and what to use.
_FOREIGN_OPTIONS = {
    "--leak-check": ("valgrind", "--reachability"),
    "--show-leak-kinds": ("valgrind", "--reachability"),
    "--trace-children": ("valgrind", "--follow"),
    "--num-callers": ("valgrind", "--max-frames N"),
    "--error-exitcode": ("valgrind", "--fail-on-leak 0, which exits with 23"),
    "--log-file": ("valgrind", "-o FILE.txt"),
    "--tool": ("valgrind", "no tool: leaks are all that is looked for"),
    "--record-only": ("heaptrack", "`memleak-android record -o FILE.memleak -- CMD`"),
    "--use-inject": ("heaptrack", "--tracer plt"),
    "--native": ("memray", "nothing: stacks are native"),
    "--trace-python-allocators": ("memray", "nothing: Python's objects are counted"),
}
_OTHER_NAMES = {"--out": "-o", "--output": "-o", "-f": "--format"}  # of our options; snoop has an -f


class _ReaderGone(Exception):
    """The reader of stdout closed it (`| head`). click would turn BrokenPipeError into exit code 1."""


def verb_named(name: str) -> click.Command:
    """Imports it: all of them take three quarters of a second."""
    verb: click.Command = getattr(import_module(f"{commands.__name__}.{name}"), name)
    return verb


class Verbs(click.Group):
    """Its help is the overview; `--help-all` has the options of `trace`, which is what runs without a verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return verb_named(cmd_name) if cmd_name in VERBS else None

    def make_context(self, *words: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*words, **more)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderGone from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(OVERVIEW)

    def format_all(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Usage"):
            for line in ("--serial ID --package APP", "--pid N", "[OPTIONS] -- CMD [ARG]...", "VERB --help"):
                formatter.write_text(f"{PROGRAM} {line}")
        formatter.write_paragraph()
        formatter.write_text(str(self.help))
        trace = verb_named("trace")
        trace.format_options(click.Context(trace), formatter)
        self.format_commands(ctx, formatter)


def _help_all(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted or not isinstance(ctx.command, Verbs):
        return
    formatter = ctx.make_formatter()
    ctx.command.format_all(ctx, formatter)
    click.echo(formatter.getvalue().rstrip("\n"))
    ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--help-all", is_flag=True, is_eager=True, expose_value=False, callback=_help_all)
@click.version_option(
    None, "--version", "-V", package_name=PROGRAM, prog_name=PROGRAM, message="%(prog)s %(version)s"
)
def verbs() -> None:
    """Finds native memory leaks: which memory is still held, which stack allocated it, and how certain both are.

    Without a verb it traces; stdout carries the result, stderr the progress.
    """


def main() -> None:
    exit_code = run(sys.argv[1:])
    try:
        sys.stderr.flush()
    except OSError:
        _write_no_more(sys.stderr)
    sys.exit(exit_code)


def run(arguments: Sequence[str]) -> int:
    """Runs the command line and returns its exit code."""
    words, command = _split(list(arguments))
    try:
        words = _with_verb(words, has_command=command is not None)
        invocation = Invocation(command, tuple(words))
        result = verbs.main(words, prog_name=PROGRAM, standalone_mode=False, obj=invocation)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        return _fail(_usage_line(error), ExitCode.USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("aborted", ExitCode.ABORTED)
    except MemleakError as error:
        return _fail(str(error), error.exit_code)
    except UnsafePathError as error:
        line = f"could not write a file: {error.strerror}; name another folder (-o, TMPDIR, XDG_CACHE_HOME)"
        return _fail(line, ExitCode.USAGE)
    except UnwindError as error:
        return _fail(str(error), ExitCode.USAGE)
    except (_ReaderGone, BrokenPipeError):
        _write_no_more(sys.stdout)
        return ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - anything else is a bug of ours
        return _end_for_full(error) or _our_bug(error)


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Our words, and the command behind the first `--` (None without a `--`)."""
    if "--" not in arguments:
        return arguments, None
    index = arguments.index("--")
    return arguments[:index], tuple(arguments[index + 1 :])


def _with_verb(words: list[str], has_command: bool) -> list[str]:
    if words and words[0] in _WORDS_OF_GROUP:
        return [*words[1:], _WORDS_OF_GROUP[words[0]]]
    verb = _first_other(words, dict.fromkeys(_BEFORE_VERB, 1) | _DEVICE)
    if verb == len(words) or words[verb] != "snoop":
        _check_names(words)
    if verb < len(words) and words[verb] in VERBS:
        if words[verb] == "trace":
            _check_foreign_words(words[verb + 1 :])
        return [words[verb], *words[:verb], *words[verb + 1 :]]
    first = _first_other(words, dict.fromkeys(_BEFORE_VERB, 1))
    if first < len(words) and words[first] in _OF_GROUP:
        return words
    _check_foreign_words(words[first:])
    if not has_command and not any(word.split("=")[0] in _TARGETS or word[:2] == "-p" for word in words):
        raise click.UsageError(
            f"no target; name one by --pid N, --package APP or -- CMD, or try `{PROGRAM} demo`"
        )
    return ["trace", *words]


def _first_other(words: list[str], passed: dict[str, int]) -> int:
    """The index behind leading options. passed: their numbers of words."""
    index = 0
    while index < len(words) and words[index] in passed:
        index += passed[words[index]]
    return index


def _check_names(words: list[str]) -> None:
    """Raises UsageError for other tools' usual names of our options."""
    for word in words:
        if ours := _OTHER_NAMES.get(word.split("=")[0]):
            raise click.UsageError(f"{word.split('=')[0]} is not an option; use {ours}")


def _check_foreign_words(words: list[str]) -> None:
    """Names our option for each of memleak's and of other tools'. Raises UsageError."""
    for word in words:
        if foreign := _FOREIGN_OPTIONS.get(word.split("=")[0]):
            raise click.UsageError(f"{word.split('=')[0]} is {foreign[0]}'s; use {foreign[1]}")
    for word, following in pairwise([*words, ""]):
        if word == "--trace" and following and not following.startswith("-"):
            raise click.UsageError(f"--trace takes no value; use --tracer {following}")
        flag, value = word[:2], (word[2:] or following)
        if flag not in _MEMLEAK_FLAGS or word.startswith("--"):
            continue
        needs_number, right = _MEMLEAK_FLAGS[flag]
        if not needs_number or value.isdecimal():
            shown = f"{flag} {value}" if needs_number else flag
            raise click.UsageError(f"{shown} is memleak's; use {right.format(value)}")
    if words and not words[0].startswith("-"):
        raise click.UsageError(_without_verb(*words))


def _without_verb(first: str, *more: str) -> str:
    """The error for a line that begins with no verb, with the line that the user probably meant."""
    if first.isdecimal() and more[:1] and more[0].isdecimal():
        return f"interval {first} without its option; use --interval {first}s --count {more[0]}"
    if first.isdecimal():
        return f"{first} without its option; use --pid {first}, or --interval {first}s"
    if which(first) or os.path.exists(first):
        return f"{first} is not a verb; to run it: {PROGRAM} -- {shlex.join((first, *more))}"
    if near := get_close_matches(first, VERBS, 1):
        return f"unknown verb: {first}; did you mean {near[0]}?"
    return f"unknown verb: {first} (expected {', '.join(VERBS)}); to run a command write -- {first}"


def _usage_line(error: click.ClickException) -> str:
    message = error.format_message().strip().rstrip(".")
    message = message[:1].lower() + message[1:]
    context, words = error.ctx if isinstance(error, click.UsageError) else None, ["--help"]
    while context and context.parent and context.info_name != "trace":  # what runs without a verb
        words.insert(0, context.info_name or "")
        context = context.parent
    return message if "; " in message else f"{message}; see `{' '.join([PROGRAM, *words])}`"


def _fail(line: str, exit_code: int) -> int:
    say(f"error: {line}")
    return exit_code


def _write_no_more(stream: TextIO) -> None:
    """Redirects to /dev/null, or the flush at exit fails again."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _end_for_full(error: Exception) -> int:
    """INCOMPLETE if standard output or a temporary file is full, else 0. Only errors of open() have a file name."""
    if not isinstance(error, OSError) or error.errno not in _FULL or error.filename is not None:
        return 0
    _write_no_more(sys.stdout)
    say(f"error: could not write the output: {error.strerror}; free space, or write to another disk")
    return ExitCode.INCOMPLETE


def _our_bug(error: Exception) -> int:
    first = next(iter(str(error).splitlines()), "")
    line = f"error: a bug of {PROGRAM}: {type(error).__name__}: {first}; please report it with"
    try:
        descriptor, path = temporary_file(f"{PROGRAM}-", ".traceback.txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
        say(f"{line} {path}")
    except OSError:  # no folder takes it
        traceback.print_exception(error)
        say(f"{line} the lines above")
    return ExitCode.BUG
