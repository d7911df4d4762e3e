"""Provenance of a recording (device, app version, labels): stored in SESSION, used by `fleet`."""

from typing import Any

from memleak_android.host.console import one_line
from memleak_android.host.machine.adb.facts import read_facts
from memleak_android.host.machine.target import Target
from memleak_android.host.profile.profile import Origin
from memleak_android.host.wire.session import SessionOrigin


def describe_device(target: Target) -> dict[str, Any]:
    """The device's fields of SESSION; {} for this machine. Raises DeviceError."""
    if target.is_local:
        return {}
    facts = read_facts(target)
    return {"model": facts.model, "release": facts.release, "api_level": facts.api_level}


def read_provenance(origin: SessionOrigin) -> Origin:
    """The recorded texts come from a stranger: each becomes one printable line."""
    return Origin(
        model=one_line(origin.model),
        release=one_line(origin.release),
        api_level=origin.api_level,
        abi=one_line(origin.abi),
        version=one_line(origin.version),
        version_code=origin.version_code,
        labels=tuple((one_line(name), one_line(value)) for name, value in origin.labels),
    )
