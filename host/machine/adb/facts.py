"""Facts about a device by feature, for `doctor`."""

from dataclasses import dataclass

from memleak_android.host.console import one_line
from memleak_android.host.machine.target import Target

_PROPERTIES = (
    *("ro.product.model", "ro.build.version.release", "ro.build.version.sdk", "ro.build.type"),
    *("ro.product.cpu.abilist", "ro.product.cpu.abi"),
)
_LOOK = """for p in "$@"; do echo "$p=$(getprop "$p")"; done
echo "kernel=$(uname -r)"; echo "machine=$(uname -m)"; echo "uid=$(id -u)"
echo "selinux=$(getenforce 2>/dev/null)"
grep -qw mte /proc/cpuinfo && echo mte=yes
grep -qw paca /proc/cpuinfo && echo pac=yes
[ -r /proc/sys/abi/tagged_addr_disabled ] && echo "tagged_off=$(cat /proc/sys/abi/tagged_addr_disabled)"
exit 0"""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """ "" means unknown.

    api_level: 0 = unknown.
    has_mte, has_pac: of the CPU.
    is_tagging: system calls accept tagged pointers, which allocators return since Android 11 (arm64 ignores the top byte).
    """

    model: str
    release: str
    api_level: int
    build_type: str
    abis: tuple[str, ...]
    kernel: str
    machine: str
    uid: str
    selinux: str
    has_mte: bool
    has_pac: bool
    is_tagging: bool


def api_level(target: Target) -> int:
    """0 = not Android, or unknown."""
    level = target.run(["getprop", "ro.build.version.sdk"]).out.strip()
    return int(level) if level.isdigit() and len(level) < 6 else 0


def read_facts(target: Target) -> DeviceFacts:
    """Reads all facts with one command. Raises DeviceError."""
    answer = target.run(["sh", "-c", _LOOK, "sh", *_PROPERTIES])
    return parse_facts(answer.out.decode("utf-8", "replace"))


def parse_facts(text: str) -> DeviceFacts:
    """Parses NAME=VALUE lines; the first of a name counts."""
    found: dict[str, str] = {}
    for line in text.replace("\r", "").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            found.setdefault(name, one_line(value.strip()))
    level = found.get("ro.build.version.sdk", "")
    abis = found.get("ro.product.cpu.abilist") or found.get("ro.product.cpu.abi", "")
    return DeviceFacts(
        model=found.get("ro.product.model", ""),
        release=found.get("ro.build.version.release", ""),
        api_level=int(level) if level.isdecimal() and len(level) < 6 else 0,
        build_type=found.get("ro.build.type", ""),
        abis=tuple(abi for abi in abis.split(",") if abi),
        kernel=found.get("kernel", ""),
        machine=found.get("machine", ""),
        uid=found.get("uid", ""),
        selinux=found.get("selinux", ""),
        has_mte=found.get("mte") == "yes",
        has_pac=found.get("pac") == "yes",
        is_tagging=found.get("tagged_off") == "0",
    )
