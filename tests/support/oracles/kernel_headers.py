"""Kernel headers for bcc, of any version: Debian's two folders of them in one tree, as BCC_KERNEL_SOURCE takes it."""

import os
from pathlib import Path

import pytest

from memleak_android.host.tracers.bcc import debian_module
from tests.support.workloads import bpf_refusal

SOURCES = Path("/usr/src")
MERGED = Path(__file__).resolve().parents[3] / "build" / "kernel-headers"


def bcc_environment() -> dict[str, str]:
    """The environment in which --tracer bcc works. Skips, with the reason, where it cannot."""
    reason = debian_module.refusal() or bpf_refusal()
    if reason:
        pytest.skip(f"no bcc here: {reason}")
    own = next(iter(sorted(SOURCES.glob("linux-headers-*-amd64"))), None)
    if own is None:
        pytest.skip("no kernel headers in /usr/src (apt-get install linux-headers-amd64)")
    target = MERGED / own.name
    if not target.exists():
        for part in (own.with_name(own.name.replace("-amd64", "-common")), own):
            _link(part, target)
    return dict(os.environ, BCC_KERNEL_SOURCE=str(target))


def _link(source: Path, target: Path) -> None:
    """Every file of source as a symbolic link below target."""
    for folder, _, names in os.walk(source):
        linked = target / Path(folder).relative_to(source)
        linked.mkdir(parents=True, exist_ok=True)
        for name in names:
            (linked / name).unlink(missing_ok=True)
            (linked / name).symlink_to(Path(folder) / name)
