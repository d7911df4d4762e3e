"""A frame of a call stack, as reports show it."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from memleak_android.host.profile.field_types import Address, Count, RawText
from memleak_android.host.profile.ownership import Owner

OWNER = "as --mine or --not-mine say"


@dataclass(frozen=True, slots=True)
class Frame:
    """A function; offset from its start, 0 for inlined ones. module "" = no mapping, function "" = no name.

    The start of nameless code is that of its FDE; offset 0 where it has none.
    """

    address: Address  # in the process, as unwound (a return address for callers)
    module: RawText  # path as mapped
    build_id: str  # hex; "" = none
    vaddr: Address  # in the ELF file
    function: RawText  # demangled
    offset: int
    inlined: bool
    method: Annotated[str, Meta(description="evidence by which the frame was found")]  # eh_frame, fp, …
    file: RawText | None = None
    line: Count | None = None
    owner: Annotated[Owner, Meta(description=OWNER)] | None = None

    @property
    def start(self) -> int:
        """The function's vaddr."""
        return max(0, self.vaddr - self.offset)
