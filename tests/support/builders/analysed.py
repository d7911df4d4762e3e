"""Hand-made recordings as Profiles, by the stages of the product; no file of a mapping is looked for here."""

from contextlib import closing
from pathlib import Path

from memleak_android.host.analysis.pipeline import View, make_profile
from memleak_android.host.heap.capture import Capture
from memleak_android.host.heap.survivors import find_survivors, recorded_survivors
from memleak_android.host.profile.profile import Profile
from memleak_android.host.recording.file import Recording
from memleak_android.host.recording.write import recording_blocks
from memleak_android.host.stacks.modules import LocalFiles, ModuleFiles, reopen
from memleak_android.host.stacks.stack_unwinder import StackUnwinder
from memleak_android.host.symbols.symbolizer import Symbolizer
from tests.support.builders.blocks import write_recording


def read(path: Path) -> tuple[Capture, Recording]:
    capture, recording = Capture(), Recording(path)
    for offset, block in recording.blocks():
        capture.add(block, offset)
    return capture, recording


def profile_of(
    path: Path,
    view: View | None = None,
    finished: Path | None = None,
    files: LocalFiles | None = None,
) -> Profile:
    """finished: where the finished recording of a raw one is written, if at all. files: of the mappings."""
    capture, recording = read(path)
    with closing(recording):
        if capture.is_finished:
            survivors = recorded_survivors(capture, reopen)
        else:
            unwinder = StackUnwinder(recording.read_block, ModuleFiles(files or LocalFiles(False)))
            survivors = find_survivors(capture, unwinder, with_past=True)
    if finished and not capture.is_finished:
        write_recording(finished, recording_blocks(capture, survivors))
    return make_profile(capture, survivors, Symbolizer(), view or View())
