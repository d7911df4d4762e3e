"""Labels and causes that a person reads in reports. Causes of loss: host/profile/losses.py."""

from memleak_android.host.console import printable
from memleak_android.host.profile.answer import AnswerState
from memleak_android.host.profile.growth import Trend, UnownedPart
from memleak_android.host.profile.runtime_sites import JIT_FRAMES, code_label, is_generated, module_name

# Sections after the user's sites, in this order; every other kind (pair:NAME) comes between them.
SECTIONS = {
    "kernel": "allocated by the kernel",
    "mmap": "memory mappings",
    "runtime": "held by the C/C++ runtime itself until exit (no leaks)",
}

# Why a stack is not complete, by TraceEnd.
ENDS = {
    "NO_MAPPING": "the next return address lies in no mapped file",
    "NO_UNWIND_ROW": "no unwind information for the last frame",
    "STACK_TRUNCATED": "the rest lies outside the captured stack bytes",
    "NO_PROGRESS": "the last frame leads back to itself",
    "UNSUPPORTED_RULE": "the last frame's unwind rule is malformed or not supported",
    "MAX_FRAMES": "deeper than the frame limit",
}
END_BY_FRAME_POINTER = "the frame pointer leads no further (--unwind cfi may)"
END_UNKNOWN = "the stack is not complete"

TRENDS = {
    Trend.BURST: "rose in one step",
    Trend.RISES: "still rising",
    Trend.PLATEAU: "rose and levelled off",
    Trend.STEADY: "steady",
}

UNOWNED = {
    UnownedPart.MAPPINGS: "memory of no block and no region that was seen",
    UnownedPart.ALLOCATOR: "the allocator's memory beyond the blocks: it keeps it, or calls were not seen",
    UnownedPart.REGIONS: "what is written to in regions of mmap",
    UnownedPart.GROWING_REGIONS: "regions of mmap that become more, no function's alone: a runtime's heap, or an allocator's",
    UnownedPart.RESIDENT: "resident memory, of blocks and regions held already",
    UnownedPart.OLDER: "blocks from before the measurement, which were given back",
}

# Parts of a process's memory, by their names in report.json.
MEMORY_PARTS = {
    "allocator": "the allocator's",
    "anonymous": "without a name: stacks of glibc's threads, mmap",
    "java_heap": "Java heap and code",
    "stacks": "stacks",
    "graphics": "graphics",
    "driver_graphics": "graphics that drivers count outside of the mappings",
    "tracer": "the tracer's own",
    "shared": "shared memory",
    "files": "files: code and data",
    "other": "other",
}

UNATTRIBUTED = "outstanding, but their stacks were not captured"
UNASKED = "their stacks were not asked for"
APPROXIMATE = "approximate: some of these blocks may belong to another stack"

# Ways to names for the code of a module.
JIT_CODE = "it was compiled while the program ran, and only that compiler knew its functions"
GENERATED_CODE = "node --perf-basic-prof, .NET's DOTNET_PerfMapEnabled=1 or Java's perf-map-agent names it"
NO_BUILD_ID = "files of symbols are found by build-id: link it with -Wl,--build-id and measure again"
SYSTEM_MODULE = "set DEBUGINFOD_URLS=https://debuginfod.elfutils.org, or pass --symbols with its debug file"
IMAGE_MODULE = "pass --symbols with the unstripped libraries of the device's build"
PACKAGE_MODULE = "build its package from source with -g (CFLAGS=-g)"
OWN_MODULE = "pass --symbols with the unstripped {}: a folder, or an APK, AAB or zip"

# The last line of a report.
NEXT_MORE_LIVE = "again with a higher --max-live"
NEXT_SYMBOLS = "again with --symbols DIR, a folder or archive that holds the unstripped libraries"
NEXT_AS_SAID = "again, as the first line says; -v names all that is missing"
NEXT_LONGER = "measure longer: growth needs five snapshots, which take about 5 s (--interval 200ms: 1 s)"
NEXT_REACHABILITY = " --reachability what is lost,"  # left out where that is known, or no question
NEXT = {
    AnswerState.LEAKING: f"-v shows whole stacks,{NEXT_REACHABILITY} -o x.html a page; --live watches it",
    AnswerState.NOT_GROWING: "-v shows what is held; a slow leak needs a longer measurement, or work that repeats",
    AnswerState.HELD_AT_EXIT: f"-v shows whole stacks,{NEXT_REACHABILITY} -o x.html a page",
    AnswerState.CANNOT_TELL: "-v names all that is missing; memleak-android doctor says what works here",
}
NEXT_COMPARE = "--show-allocs lists the single blocks, --json FILE keeps this report for comparison"


# Modules below these come with the system, and so do their symbols.
_OF_IMAGE = ("/system/", "/apex/", "/vendor/")  # Android's
SYSTEM_FOLDERS = (
    *("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/", "/usr/bin/", "/usr/sbin/", "/bin/", "/sbin/", "["),
    *_OF_IMAGE,
)
_OF_PACKAGES = ("/site-packages/", "/dist-packages/", "/node_modules/")


def way_out(module: str, build_id: str) -> str:
    """The option that would name the code of a module."""
    if is_generated(module):
        return JIT_CODE if code_label(module) == JIT_FRAMES else GENERATED_CODE
    if any(folder in module for folder in _OF_PACKAGES):
        return PACKAGE_MODULE
    if not build_id:
        return NO_BUILD_ID
    if module.startswith(_OF_IMAGE):
        return IMAGE_MODULE
    if module.startswith(SYSTEM_FOLDERS):
        return SYSTEM_MODULE
    return OWN_MODULE.format(printable(module_name(module)))
