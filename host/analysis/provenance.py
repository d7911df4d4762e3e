"""Where a recording comes from: written into its SESSION by who measures, read back by who compares many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memleak_android.host.console import one_line
from memleak_android.host.machine.adb.facts import read_facts
from memleak_android.host.machine.target import Target
from memleak_android.host.profile.profile import Origin

LABELS_MAX = 32


def describe_device(target: Target) -> dict[str, Any]:
    """Fields of SESSION that a device tells of itself; {} of this machine. Raises DeviceError."""
    if target.is_local:
        return {}
    facts = read_facts(target)
    return {"model": facts.model, "release": facts.release, "api_level": facts.api_level}


def read_provenance(session: Mapping[str, Any]) -> Origin:
    """Of a recording, which may have been written by anybody: what is no text or number is not told."""
    labels = session.get("labels")
    pairs = list(labels.items())[:LABELS_MAX] if isinstance(labels, dict) else []
    return Origin(
        model=_text(session.get("model")),
        release=_text(session.get("release")),
        api_level=_number(session.get("api_level")),
        abi=_text(session.get("abi")),
        version=_text(session.get("version")),
        version_code=_number(session.get("version_code")),
        labels=tuple((_text(name), _text(value)) for name, value in pairs),
    )


def _text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 63 else 0
