"""Tells the places of stacks apart."""

from collections.abc import Sequence
from dataclasses import replace

from memleak_android.host.profile.culprit import responsible_frame
from memleak_android.host.profile.profile import Frame
from memleak_android.host.profile.site_id import identity_part


def _identity(frame: Frame) -> bytes:
    """Nameless code by the start of its function: a site's id has the address of the call."""
    is_nameless = not frame.function and frame.offset
    return identity_part(replace(frame, vaddr=frame.start) if is_nameless else frame)


class PlaceNumbers:
    """Numbers places in the order in which their stacks come."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, bytes, str, int], int] = {}
        self.firsts: list[tuple[Frame | None, str]] = []  # of each place: its frame, its kind

    def number(self, frames: Sequence[Frame], kind: str) -> int:
        frame = responsible_frame(frames)
        key = (kind, _identity(frame), frame.file or "", frame.line or 0) if frame else (kind, b"", "", 0)
        found = self._numbers.setdefault(key, len(self._numbers))
        if found == len(self.firsts):
            self.firsts.append((frame, kind))
        return found
