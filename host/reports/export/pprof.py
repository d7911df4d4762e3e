"""pprof's profile.proto, gzipped: alloc_objects, alloc_space, inuse_objects, inuse_space, as heap profiles have them."""

import gzip
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any, BinaryIO

from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.profile import CallSite, Profile
from memleak_android.host.reports.base import ReportOptions, bounded
from memleak_android.host.reports.export.exported import (
    GIVEN_BACK,
    display_name,
    freed_elsewhere,
    heap_sites,
    locations,
    named,
)
from memleak_android.host.reports.export.protobuf_schema import message_class, messages
from memleak_android.host.reports.text.answer import answer_text, measured_line

# pprof hides what matches at the leaf, so that the allocation's caller is on top.
ALLOCATORS = r"malloc|calloc|realloc|reallocarray|memalign|aligned_alloc|posix_memalign|p?valloc|operator new(\[\])?\(.*"
ALLOC_TYPES = (("alloc_objects", "count"), ("alloc_space", "bytes"))
INUSE_TYPES = (("inuse_objects", "count"), ("inuse_space", "bytes"))


PACKAGE = "perftools.profiles"

MESSAGES = messages(
    Profile="1 [ValueType] sample_type, 2 [Sample] sample, 3 [Mapping] mapping,"
    " 4 [Location] location, 5 [Function] function, 6 [string] string_table, 7 int64 drop_frames,"
    " 8 int64 keep_frames, 9 int64 time_nanos, 10 int64 duration_nanos, 11 ValueType period_type,"
    " 12 int64 period, 13 [int64] comment, 14 int64 default_sample_type",
    ValueType="1 int64 type, 2 int64 unit",
    Sample="1 [uint64] location_id, 2 [int64] value, 3 [Label] label",
    Label="1 int64 key, 2 int64 str, 3 int64 num, 4 int64 num_unit",
    Mapping="1 uint64 id, 2 uint64 memory_start, 3 uint64 memory_limit, 4 uint64 file_offset,"
    " 5 int64 filename, 6 int64 build_id, 7 bool has_functions, 8 bool has_filenames,"
    " 9 bool has_line_numbers, 10 bool has_inline_frames",
    Location="1 uint64 id, 2 uint64 mapping_id, 3 uint64 address, 4 [Line] line, 5 bool is_folded",
    Line="1 uint64 function_id, 2 int64 line",
    Function="1 uint64 id, 2 int64 name, 3 int64 system_name, 4 int64 filename, 5 int64 start_line",
)


@lru_cache(maxsize=1)
def profile_class() -> Any:
    """The class of the message Profile."""
    return message_class(PACKAGE, MESSAGES, "Profile")


def write(profile: Profile, stream: BinaryIO, options: ReportOptions) -> None:
    """All sites, whatever options.top says. alloc_* only where the route counted every allocation."""
    encoded = _Writer(profile).message(options).SerializeToString(deterministic=True)
    with gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed:
        packed.write(encoded)


class _Writer:
    """Fills one message; strings, mappings, functions and locations are numbered as they are first met."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._message = profile_class()()
        self._strings: dict[str, int] = {}
        self._mappings: dict[tuple[str, str], Any] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[Frame, ...], int] = {}
        self._string("")

    def message(self, options: ReportOptions) -> Any:
        freed = freed_elsewhere(self._profile)
        types = (*ALLOC_TYPES, *INUSE_TYPES) if freed else INUSE_TYPES
        for kind, unit in types:
            self._message.sample_type.add(type=self._string(kind), unit=self._string(unit))
        self._main_mapping_first()
        for site in heap_sites(self._profile):
            values = [site.inuse_objects, site.inuse_space]
            self._sample(site, [site.alloc_objects or 0, site.alloc_space or 0, *values] if freed else values)
        if freed and any(freed):
            nothing = CallSite("", 0, 0, None, None, 0, "user", "ROOT", (named(GIVEN_BACK),))
            self._sample(nothing, [freed[1], freed[0], 0, 0])
        self._about("inuse_space" if options.sort != "count" else "inuse_objects")
        return self._message

    def _about(self, shown: str) -> None:
        profile, message = self._profile, self._message
        message.time_nanos = round(profile.wall_clock_s * 1e9)
        message.duration_nanos = min(profile.duration_ns, 2**63 - 1)
        message.period_type.type, message.period_type.unit = self._string("space"), self._string("bytes")
        message.period = profile.target.sample_bytes or 1
        message.default_sample_type = self._string(shown)
        message.drop_frames = self._string(ALLOCATORS)
        about = f"memleak-android {version('memleak-android')}, tracer {profile.target.tracer}"
        for note in filter(None, (answer_text(profile), about, *profile.notes, measured_line(profile))):
            message.comment.append(self._string(bounded(note)))

    def _main_mapping_first(self) -> None:
        """pprof takes the first mapping for the program's; the outermost frame's of the largest site is a good guess."""
        program = self._profile.target.command.split(" ")[0].rsplit("/", 1)[-1]
        modules = ((f.module, f.build_id) for site in self._profile.sites for f in reversed(site.frames))
        main = next((module for module in modules if program and module[0].endswith(f"/{program}")), None)
        if main:
            self._mapping(*main)

    def _sample(self, site: CallSite, values: Sequence[int]) -> None:
        sample = self._message.sample.add(value=values)
        sample.location_id.extend(self._location(chain) for chain in locations(site.frames))
        if site.id:
            sample.label.add(key=self._string("site"), str=self._string(site.id))
            sample.label.add(key=self._string("kind"), str=self._string(bounded(site.kind)))

    def _location(self, chain: tuple[Frame, ...]) -> int:
        if chain not in self._locations:
            self._locations[chain] = len(self._locations) + 1
            outer = chain[-1]
            location = self._message.location.add(id=len(self._locations), address=outer.address)
            if outer.module:
                location.mapping_id = self._place(outer, is_inlined=len(chain) > 1)
            for frame in chain:
                location.line.add(function_id=self._function(frame), line=frame.line or 0)
        return self._locations[chain]

    def _place(self, frame: Frame, is_inlined: bool) -> int:
        """The number of the frame's mapping, which is made to reach as far as the frame."""
        mapping = self._mapping(frame.module, frame.build_id)
        start = max(0, frame.address - frame.vaddr)
        if not mapping.memory_limit or start < mapping.memory_start:
            mapping.memory_start = start
        mapping.memory_limit = max(mapping.memory_limit, (frame.address | 0xFFF) + 1)
        mapping.has_functions |= bool(frame.function)
        mapping.has_filenames |= bool(frame.file)
        mapping.has_line_numbers |= bool(frame.line)
        mapping.has_inline_frames |= is_inlined
        return int(mapping.id)

    def _mapping(self, module: str, build_id: str) -> Any:
        if (module, build_id) not in self._mappings:
            mapping = self._message.mapping.add(id=len(self._mappings) + 1)
            mapping.filename, mapping.build_id = self._string(bounded(module)), self._string(build_id)
            self._mappings[module, build_id] = mapping
        return self._mappings[module, build_id]

    def _function(self, frame: Frame) -> int:
        key = (display_name(frame), bounded(frame.file or ""))
        if key not in self._functions:
            self._functions[key] = len(self._functions) + 1
            name = self._string(key[0])
            self._message.function.add(
                id=len(self._functions), name=name, system_name=name, filename=self._string(key[1])
            )
        return self._functions[key]

    def _string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings)
            self._message.string_table.append(text)
        return self._strings[text]
