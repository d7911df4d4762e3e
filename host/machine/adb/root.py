"""Ways to root on a device, found by trying them, and the form of a command for each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import Enum


class RootRoute(Enum):
    """ADBD: adbd itself runs as root. SU_USER: AOSP's `su 0 COMMAND ARG…`. SU_COMMAND: `su -c LINE` of Magisk,
    KernelSU and SuperSU. NONE: no way found.
    """

    ADBD = "adbd"
    SU_USER = "su 0"
    SU_COMMAND = "su -c"
    NONE = "none"


# Each su misreads the other's arguments, so only a uid of 0 on stdout is proof. A superuser app
# may ask on the screen first: then this takes as long as the user's answer.
PROBE = "id -u; echo .; su 0 id -u </dev/null; echo .; su -c 'id -u' </dev/null; echo ."
PROBE_TIMEOUT_S = 45.0
_ORDER = (RootRoute.ADBD, RootRoute.SU_USER, RootRoute.SU_COMMAND)


def parse_probe(out: bytes) -> RootRoute:
    """The route that the output of PROBE proves."""
    answers = out.decode("utf-8", "replace").replace("\r", "").split(".\n")
    for route, answer in zip(_ORDER, answers, strict=False):
        if answer.strip() == "0":
            return route
    return RootRoute.NONE


def elevated(argv: Sequence[str], route: RootRoute) -> list[str]:
    """`argv` in the form that runs as root. Raises ValueError if there is no route."""
    match route:
        case RootRoute.ADBD:
            return list(argv)
        case RootRoute.SU_USER:
            return ["su", "0", *argv]
        case RootRoute.SU_COMMAND:
            return ["su", "-c", shlex.join(argv)]
        case RootRoute.NONE:
            raise ValueError("no route to root")
