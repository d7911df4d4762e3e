"""Inputs that the unwinder cannot use. A stack that cannot be finished is a result (TraceEnd), not an error."""


class UnwindError(Exception):
    """Base of all errors of this library: one line, what failed, with which datum."""


class BadElfError(UnwindError):
    """A file that is not an ELF, is cut short, or whose headers contradict each other."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"could not read {path}: {reason} (give the file that the process has mapped)")
        self.path = path
        self.reason = reason


class BadCfiError(UnwindError):
    """Call frame information that is malformed (DWARF 5 §6.4)."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"malformed call frame information: {reason} at section offset {offset:#x}")
        self.reason = reason
        self.offset = offset


class ExpressionError(UnwindError):
    """A DWARF expression that is malformed, too long, or uses an operation that CFI does not allow."""


class UnreadableMemoryError(UnwindError):
    """A needed word lies outside the captured bytes, or a needed register was not captured."""

    def __init__(self, address: int) -> None:
        super().__init__(f"memory at {address:#x} was not captured")
        self.address = address


class UnsupportedArchError(UnwindError):
    """An ELF machine for which unwind/arch/ has no table."""

    def __init__(self, machine: object) -> None:
        super().__init__(f"unsupported architecture: {machine} (expected one of the tables in unwind/arch)")
        self.machine = machine


class BadSnapshotError(UnwindError):
    """A snapshot folder that lacks a file, or holds one that cannot be understood."""

    def __init__(self, path: object, reason: str, hint: str) -> None:
        super().__init__(f"could not read {path}: {reason} ({hint})")
        self.path = path
        self.reason = reason
