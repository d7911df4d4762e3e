"""Code that was not measured: modules of a PLT hook session, and programs that a process became by exec."""

import re
from collections.abc import Sequence

import numpy as np

from memleak_android.host.analysis.pipeline import target_pid
from memleak_android.host.heap.capture import Capture
from memleak_android.host.machine.parse import parse_maps
from memleak_android.host.profile.coverage import Answer, Condition, Reason
from memleak_android.host.wire.blocks import HOOKED, HookedFlag, Lost, ProcessEvent, Rows
from memleak_android.unwind.maps import Mapping

_NAMED_MAX = 5
_DEVICE = re.compile("([0-9a-f]{1,8}):([0-9a-f]{1,8})")
_PAGE_MASK = 0xFFF
_PROGRAM = "the program itself"
_REASONS = {
    HookedFlag.MALFORMED: "its tables are malformed",
    HookedFlag.READ_ONLY: "they cannot be written to",
    HookedFlag.NO_ROOM: "there are more than the shim has room for",
    HookedFlag.UNSETTLED: "the loader was changing them",
}


def hooked_modules(capture: Capture) -> Rows:
    """The last row (HOOKED) of each module, by pid, address and file."""
    rows = np.concatenate([np.empty(0, HOOKED), *capture.hooked])
    latest = {(int(row["pid"]), int(row["module"]), bytes(row["name"])): i for i, row in enumerate(rows)}
    return rows[sorted(latest.values())]


def hooked_remarks(capture: Capture) -> list[str]:
    """Lines for the report about calls that a PLT hook never sees, and about late modules; [] where nothing was hooked."""
    rows = hooked_modules(capture)
    if not len(rows):
        return []
    found = [
        (
            f"calls were seen where a module makes them through a slot ({rows['n_slots'].sum()} slots of "
            f"{np.count_nonzero(rows['n_slots'])} modules); not inside a libc that calls itself directly, "
            "nor through addresses from dlsym(), nor of an allocator that is linked into its caller"
        )
    ]
    found += [_late(row) for row in rows if row["since_ns"] and row["n_slots"]][:_NAMED_MAX]
    if others := _listed(list(dict.fromkeys(_name(row) for row in rows if row["n_foreign"]))):
        found.append(
            f"{others} also called functions of these names that are, or may be, another allocator's: not seen"
        )
    programs = rows[(rows["flags"] & int(HookedFlag.PROGRAM)) != 0]
    if len(programs) and not programs["n_slots"].any() and not programs["n_foreign"].any():
        found.append(
            f"{_PROGRAM} calls no allocator through a slot: if it has one of its own, that is not seen "
            "(--tracer inline sees it)"
        )
    return found


def hooked_missing(capture: Capture) -> list[Reason]:
    """Calls that a PLT hook missed: through slots that it could not patch, in modules that it noticed late or never."""
    rows = hooked_modules(capture)
    if not len(rows):
        return []
    missing = [
        f"{row['n_refused']} slots of {_name(row)} could not be patched ({_reasons(row)}): what it allocates "
        "through them is missing"
        for row in rows
        if row["n_refused"]
    ][:_NAMED_MAX]
    is_program = (rows["flags"] & int(HookedFlag.PROGRAM)) != 0
    if (is_program & (rows["n_foreign"] > 0)).any():
        missing.append(
            f"{_PROGRAM} calls functions of these names that were not hooked: not seen (--tracer bpf)"
        )
    if not rows["n_slots"].any():
        missing.append("no module calls a traced function through a slot (--tracer inline)")
    if unseen := _unseen(capture, rows):
        missing.append(f"{_listed(unseen)} loaded unnoticed: what they allocate is missing")
    late = [_late(row) for row in rows if row["since_ns"] and row["n_slots"]][:_NAMED_MAX]
    return [
        *(Reason(Condition.PROGRAMS, Answer.NO, text) for text in missing),
        *(Reason(Condition.PROGRAMS, Answer.TOLERATED, text) for text in late),
    ]


def _late(row: np.void) -> str:
    unseen_ms = (int(row["patched_ns"]) - int(row["since_ns"])) / 1e6
    return f"{_name(row)} was loaded during the session; what its constructors allocated is missing, within {unseen_ms:.1f} ms"


def _reasons(row: np.void) -> str:
    reasons = [text for flag, text in _REASONS.items() if flag & int(row["flags"])]
    return ", ".join(reasons) or "other code changed them at that moment"


def _name(row: np.void) -> str:
    return bytes(row["name"]).decode("utf-8", "replace") or _PROGRAM


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _unseen(capture: Capture, rows: Rows) -> list[str]:
    """Libraries with code in the last maps of a hooked process that have no row."""
    found: list[str] = []
    for pid in np.unique(rows["pid"]):
        texts = [maps for maps in capture.maps if maps.pid == pid]
        if not texts:
            continue
        starts = {int(address) & ~_PAGE_MASK for address in rows["module"][rows["pid"] == pid]}
        found += _files_without(max(texts, key=lambda maps: maps.timestamp_ns).text, starts)
    return list(dict.fromkeys(found))


def _files_without(text: str, starts: set[int]) -> list[str]:
    """Base names of libraries (`.so` in their names) with code, without a mapping that begins at one of `starts`."""
    is_known: dict[str, bool] = {}
    has_code: dict[str, bool] = {}
    for line in text.split("\n"):
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/") or ".so" not in fields[5]:
            continue
        path = fields[5]
        is_known[path] = is_known.get(path, False) or int(fields[0].split("-")[0], 16) in starts
        has_code[path] = has_code.get(path, False) or "x" in fields[1]
    names = [path.rsplit("/", 1)[1] for path, known in is_known.items() if has_code[path] and not known]
    return [name for name in names if "libmemleak" not in name]


def unprobed_programs(capture: Capture) -> list[Reason]:
    """Reasons for programs that processes became by exec and that never mapped the file with the probes; for BPF sessions.

    So for children that ran before a session that follows them. Of each process the last one counts: what the others held went with their images. The file is identified by device and
    inode: under another root the same path is another file.
    """
    allocator = capture.session.tracing.allocator
    programs = _last_programs(capture)
    if not isinstance(allocator, str) or not allocator or not programs:
        return []
    probed, files = _mapped_files(capture, allocator)
    lost = capture.status is not None and int(capture.status["lost"][Lost.MAPPINGS])
    if probed is None or lost:
        return [
            Reason(Condition.PROGRAMS, Answer.UNKNOWN, "it is not known which programs mapped the allocator")
        ]
    unmeasured = [
        name
        for pid, (begin_ns, name) in programs.items()
        if (own := {file for mapped_ns, file in files.get(pid, ()) if mapped_ns >= begin_ns})
        and probed not in own
    ]
    if not unmeasured:
        return []
    names = _listed(list(dict.fromkeys(unmeasured)))
    text = f"not measured, because it is another program, without {allocator}: {names} ({len(unmeasured)} in all)"
    return [Reason(Condition.PROGRAMS, Answer.NO, text)]


_File = tuple[int, int, int]  # device and inode


def _mapped_files(
    capture: Capture, allocator: str
) -> tuple[_File | None, dict[int, list[tuple[int, _File]]]]:
    """The identity of the file with the probes, and by process when it mapped which file's code."""
    probed = _file_in_maps(capture, allocator)  # of a process that was attached to
    files: dict[int, list[tuple[int, _File]]] = {}
    for rows, paths in capture.mappings:
        for row, path in zip(rows, paths, strict=True):
            file = int(row["device_major"]), int(row["device_minor"]), int(row["inode"])
            if path == allocator and probed is None:
                probed = file
            if file[2]:
                files.setdefault(int(row["pid"]), []).append((int(row["timestamp_ns"]), file))
    for maps in capture.maps:
        own = [found for one in parse_maps(maps.text) if one.is_executable and (found := _file(one))]
        files.setdefault(maps.pid, []).extend((maps.timestamp_ns, file) for file in own)
    return probed, files


def _file_in_maps(capture: Capture, path: str) -> _File | None:
    for maps in capture.maps:
        for one in parse_maps(maps.text):
            if one.path == path and (file := _file(one)):
                return file
    return None


def _file(mapping: Mapping) -> _File | None:
    device = _DEVICE.fullmatch(mapping.device)
    return (int(device[1], 16), int(device[2], 16), mapping.inode) if mapping.inode and device else None


def _last_programs(capture: Capture) -> dict[int, tuple[int, str]]:
    """By process when it last became a program by exec, or ran already below the target, and which."""
    found: dict[int, tuple[int, str]] = {}
    target = target_pid(capture)
    for rows in capture.processes:
        is_child = (rows["event"] == ProcessEvent.START) & (rows["pid"] != target) & (target != 0)
        for row in rows[(rows["event"] == ProcessEvent.EXEC) | is_child]:
            pid, name = int(row["pid"]), bytes(row["comm"]).rstrip(b"\0").decode("utf-8", "replace")
            found[pid] = max(found.get(pid, (0, "")), (int(row["timestamp_ns"]), name))
    return found
