"""Ways to root on a device, told by trying them, and how a command is written for each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import Enum


class RootRoute(Enum):
    """ADBD: adbd itself runs as root. SU_USER: AOSP's `su 0 COMMAND ARG…`. SU_COMMAND: `su -c LINE`, as Magisk,
    KernelSU and SuperSU have it. NONE: no way found.
    """

    ADBD = "adbd"
    SU_USER = "su 0"
    SU_COMMAND = "su -c"
    NONE = "none"


# Each variant takes the other's words for something else: only a uid of 0 on stdout tells that it works. Superusers
# may ask on the screen first: then this takes as long as the user does.
PROBE = "id -u; echo .; su 0 id -u </dev/null; echo .; su -c 'id -u' </dev/null; echo ."
PROBE_TIMEOUT_S = 45.0
_ORDER = (RootRoute.ADBD, RootRoute.SU_USER, RootRoute.SU_COMMAND)


def parse_probe(out: bytes) -> RootRoute:
    """What the output of PROBE means."""
    answers = out.decode("utf-8", "replace").replace("\r", "").split(".\n")
    for route, answer in zip(_ORDER, answers, strict=False):
        if answer.strip() == "0":
            return route
    return RootRoute.NONE


def elevated(argv: Sequence[str], route: RootRoute) -> list[str]:
    """`argv` as it is run as root. Raises ValueError where there is no route."""
    match route:
        case RootRoute.ADBD:
            return list(argv)
        case RootRoute.SU_USER:
            return ["su", "0", *argv]
        case RootRoute.SU_COMMAND:
            return ["su", "-c", shlex.join(argv)]
        case RootRoute.NONE:
            raise ValueError("no route to root")
