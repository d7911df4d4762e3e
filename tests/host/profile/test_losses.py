"""A cause of loss is in the header, in its mirror, in the table, in the bcc program and in the document, or nowhere."""

import re
from pathlib import Path

from memleak_android.host.profile.losses import LOSS_CAUSES
from memleak_android.host.wire.blocks import LOST_MAX, Lost

ROOT = Path(__file__).parents[3]
NAMES = [cause.name.lower() for cause in Lost]


def test_the_table_has_the_causes_of_the_wire_format() -> None:
    assert list(LOSS_CAUSES) == NAMES
    header = (ROOT / "device/wire.h").read_text()
    assert [
        name.lower() for name in re.findall(r"^\tML_LOST_(\w+) = \d+, +/\*", header, re.MULTILINE)
    ] == NAMES


def test_the_wire_format_has_room() -> None:
    assert len(Lost) <= LOST_MAX, "STATUS has a fixed array: another cause needs a new wire version"


def test_bcc_counts_by_the_same_numbers() -> None:
    program = (ROOT / "host/tracers/bcc/accounting.c").read_text()
    first, *rest = re.findall(
        r"\bLOST_(\w+)", re.search(r"LOST_RING_FULL = LOST,.*?;", program, re.DOTALL)[0]
    )  # type: ignore[index]
    counted = [name.lower() for name in (first, *rest) if name != "MAX"]
    assert counted == NAMES[: len(counted)]


def test_the_document_has_them_all() -> None:
    (causes,) = re.findall(
        r"^`lost`, .*?: (.*)\.$", (ROOT / "docs/wire-protocol.md").read_text(), re.MULTILINE
    )
    assert causes == ", ".join(f"{number} {name.replace('_', ' ')}" for number, name in enumerate(NAMES))
