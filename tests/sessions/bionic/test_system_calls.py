"""System calls of the shim: none for which Android's seccomp filter kills an app (Android 8 and later)."""

import re
from pathlib import Path

SHIM = Path(__file__).resolve().parents[3] / "device" / "preload"
CALL = re.compile(r"ML_SYSCALL[0-6]\((\w+)|__NR_(\w+)")

# Of bionic's libc/SYSCALLS.TXT and libc/SECCOMP_*.TXT, in all of android-8.0.0_r1, 9.0.0_r1, 11.0.0_r1 and 14.0.0_r1.
EVERYWHERE = {
    "clock_gettime", "close", "connect", "fcntl", "fsync", "getpid", "getppid", "getrandom", "getsockopt", "gettid", "madvise", "mincore",
    "memfd_create", "mlock", "mprotect", "mremap", "munlock", "munmap", "openat", "ppoll", "prctl", "pread64", "prlimit64", "process_vm_readv", "read", "renameat",
    "sched_yield", "sendmsg", "setsockopt", "sigaltstack", "socket", "tgkill", "unlinkat", "write",
}  # fmt: skip
# Equivalent system calls on 32-bit systems; syscalls.h chooses.
ON_64_BITS = {"mmap": "mmap2", "geteuid": "geteuid32", "ftruncate": "ftruncate64"}
PARAMETERS = {"name"}  # of the macros


def made(path: Path) -> set[str]:
    return {one or other for one, other in CALL.findall(path.read_text())} - PARAMETERS


def test_the_shim_makes_system_calls_that_apps_may_make() -> None:
    found = {str(path.relative_to(SHIM)): made(path) for path in sorted(SHIM.rglob("*.[ch]"))}
    chosen = set(ON_64_BITS) | set(ON_64_BITS.values())
    assert chosen <= found["freestanding/syscalls.h"]
    found["freestanding/syscalls.h"] -= chosen
    assert "memfd_create" in set().union(*found.values())
    # Forwarded as they came: the mmap family where off_t fits a register, on 64 bits, and what a program does to itself.
    found["entries/interpose_regions.c"].discard("mmap")
    found["entries/limits.c"].discard("mlockall")
    found["entries/sandbox.c"].discard("seccomp")
    forbidden = {name: calls - EVERYWHERE for name, calls in found.items() if calls - EVERYWHERE}
    assert not forbidden
