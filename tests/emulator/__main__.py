"""python -m tests.emulator start|stop|status: a machine to work with by hand."""

import argparse
import sys

from tests.emulator.phone.boot import start
from tests.emulator.phone.kernels import DEFAULT, LINES
from tests.emulator.phone.machine import Machine, Options, running
from tests.emulator.phone.qemu import MachineFailed
from tests.support.debian_packages import Unavailable


def main(argv: list[str]) -> int:
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.verb(arguments))
    except (Unavailable, MachineFailed) as error:
        print(f"tests.emulator: error: {error}", file=sys.stderr)
        return 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description=__doc__)
    verbs = parser.add_subparsers(required=True)
    begin = verbs.add_parser("start", help="start a machine and say how to reach it")
    begin.add_argument("--kernel", choices=LINES, default=DEFAULT)
    begin.add_argument("--build", choices=("userdebug", "user"), default="userdebug")
    begin.add_argument("--api-level", type=int, default=29)
    begin.add_argument(
        "--number", type=int, default=0, help="N of its serial emulator-N (the first free one)"
    )
    begin.set_defaults(verb=_start)
    finish = verbs.add_parser("stop", help="stop the machine N, or all that run")
    finish.add_argument("number", type=int, nargs="?", default=0)
    finish.set_defaults(verb=_stop)
    verbs.add_parser("status", help="the machines that run").set_defaults(verb=_status)
    return parser


def _start(arguments: argparse.Namespace) -> int:
    options = Options(arguments.kernel, arguments.build, arguments.api_level)
    _show(start(options, number=arguments.number, outlives_us=True))
    return 0


def _stop(arguments: argparse.Namespace) -> int:
    for machine in running():
        if arguments.number in (0, machine.number):
            machine.stop()
            print(f"stopped {machine.serial}")
    return 0


def _status(_: argparse.Namespace) -> int:
    for machine in running():
        _show(machine)
    return 0


def _show(machine: Machine) -> None:
    print(f"{machine.serial}  kernel {machine.options.kernel}  adb answered after {machine.boot_s:.1f} s")
    print("  reach it:  export " + " ".join(f"{name}={value}" for name, value in machine.environment.items()))
    print("  try it:    memleak-android --package com.example.leaky --launch --duration 20s")
    print(f"  stop it:   python -m tests.emulator stop {machine.number}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
