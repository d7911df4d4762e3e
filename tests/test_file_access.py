"""Files are written through unwind/file_writing.py alone: no other module opens, makes, renames or deletes one."""

import ast
import functools
from collections.abc import Iterable, Iterator

from tests.test_structure import ROOT

WRITER = "unwind/file_writing.py"
CHANGING = {
    "write_text", "write_bytes", "mkdir", "makedirs", "touch", "rmdir", "unlink", "rmtree", "mknod",
    "mkfifo", "rename", "renames", "removedirs", "symlink", "symlink_to", "hardlink_to", "copyfile",
    "copytree", "chmod", "mkstemp", "mkdtemp", "NamedTemporaryFile", "SpooledTemporaryFile",
    "TemporaryDirectory", "TemporaryFile", "os.link", "os.remove", "os.truncate", "os.chown",
    "shutil.copy", "shutil.copy2", "shutil.move", "extractall",
}  # fmt: skip
FLAGS = ("O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC")
# What is opened by a constant name, or is a file of a store (fsspec) that is not this machine's.
ALLOWED = {
    "host/cli.py": {"os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)"},
    "host/commands/results.py": {"open(os.dup(1), 'wb')"},
    "host/fleet/dataset.py": {"self._files.makedirs(path, exist_ok=True)", "self._files.open(path, 'wb')"},
    "host/fleet/named_cache.py": {"files.makedirs(root, exist_ok=True)"},
    "host/machine/local/channel.py": {"os.open(os.devnull, os.O_RDWR)"},
    "host/session/live_window.py": {
        "os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)",
        "os.open('/dev/tty', os.O_RDWR | os.O_CLOEXEC)",
    },
    "host/pytest_plugin.py": {
        "times.mkdir()",
        "(folder / str(os.getpid())).open('a')",
    },  # in a folder of its own
    "host/__main__.py": {"os.open(os.devnull, os.O_RDWR)"},
    "unwind/abandonable_calls.py": {"os.open(os.devnull, os.O_RDWR)"},
    "host/tracers/bcc/__main__.py": {"os.fdopen(os.dup(1), 'wb')"},
    "host/symbols/build_cache.py": {"self.files.makedirs(target.rpartition('/')[0], exist_ok=True)"},
}


@functools.cache
def calls() -> dict[str, list[ast.Call]]:
    """All calls of each file of the product, by its name."""
    paths = sorted([*(ROOT / "host").rglob("*.py"), *(ROOT / "unwind").rglob("*.py")])
    return {path.relative_to(ROOT).as_posix(): calls_in(path.read_text()) for path in paths}


def calls_in(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def writes(calls: Iterable[ast.Call]) -> Iterator[str]:
    """Calls that open a path for writing, or change what a folder holds."""
    return (ast.unparse(call) for call in calls if is_write(call))


def is_write(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    method = name.rpartition(".")[2]
    arguments = [ast.unparse(argument) for argument in (*call.args, *(word.value for word in call.keywords))]
    if {method, name} & CHANGING and not name.startswith("formatter."):  # click has a write_text(), too
        return True
    if (
        method == "replace"
    ):  # Path.replace() has one argument, str.replace() two, dataclasses.replace() keywords
        return name == "os.replace" or (len(call.args) == 1 and not call.keywords)
    if method in ("open", "fdopen", "FileIO", "memmap"):
        is_new_descriptor = arguments[:1] and arguments[0].startswith(("create(", "append(", "descriptor"))
        modes = [
            text for text in arguments if text[:1] in "'\"" and set(text) & set("wax+") and len(text) <= 5
        ]
        return any(flag in text for flag in FLAGS for text in arguments) or (
            bool(modes) and not is_new_descriptor
        )
    return False


def test_one_module_writes_files() -> None:
    found = {name: set(writes(inside)) - ALLOWED.get(name, set()) for name, inside in calls().items()}
    assert found.pop(WRITER)
    assert not any(found.values()), found


def test_the_search_finds_what_writes() -> None:
    writing = """open(path, 'wb'); path.open('a'); gzip.open(path, 'xt'); os.open(path, os.O_WRONLY)
Path(x).write_text(''); temporary.replace(path); os.replace(a, b); shutil.copyfile(a, b); tempfile.mkstemp()
archive.extractall(path)"""
    other = "open(path, 'rb'); text.replace('a', 'b'); replace(options, a=1); os.open(p, os.O_RDONLY)"
    assert len(list(writes(calls_in(writing)))) == 10
    assert not list(writes(calls_in(other)))


READER = "unwind/file_reading.py"
# Memory that is shared with the kernel, not a file.
MAPPED_MEMORY = {"host/tracers/bcc/session.py"}
# Files of the kernel's, and of this package's.
READ_BY_NAME = {
    "host/__main__.py": {"open(number, mode, encoding='utf-8', closefd=False)"},
    "host/commands/demo.py": {"path.read_text()"},
    "host/machine/adb/keeper.py": {"path.read_bytes()"},
    "host/machine/local/process.py": {"open(path, 'rb', buffering=0)"},
    "host/perf_data/code_locations.py": {
        "(self._root / 'proc/kallsyms').read_text()",
        "(self._root / 'proc/stat').read_text()",
        "(self._root / 'sys/kernel/notes').read_bytes()",
    },
    "host/pytest_plugin.py": {"path.open()"},
    "host/reports/html/report.py": {
        "resources.files('memleak_android.host.reports.html').joinpath('web', name).read_text(encoding='utf-8')"
    },
    "host/session/spool.py": {
        "os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)"
    },
    "host/tracers/bcc/programs.py": {
        "(files('memleak_android.host.tracers.bcc') / 'accounting.c').read_text()"
    },
}


NOT_NAMED = ("'/proc/", "os.devnull", "open_regular(", "ocation(path).open()", "location.open()")


def reads(calls: Iterable[ast.Call]) -> Iterator[str]:
    """Calls that open a path for reading; not those of a constant name in /proc or /dev."""
    for node in calls:
        if is_write(node):
            continue
        text, name = ast.unparse(node), ast.unparse(node.func)
        mode = ast.unparse(node.args[0]) if node.args else ""
        is_read = name in ("open", "os.open", "io.open", "gzip.open", "np.fromfile", "np.memmap", "np.load")
        is_read |= name.endswith((".read_text", ".read_bytes"))
        is_read |= name.endswith(".open") and mode[:2] in ("'r", "")
        is_of_descriptor = name == "open" and mode.startswith(("descriptor", "create(", "append("))
        if is_read and not is_of_descriptor and not any(of in text for of in NOT_NAMED):
            yield text


def test_one_module_opens_what_others_name() -> None:
    """A FIFO among inputs is waited for, /dev/zero has no end: the reader takes regular files alone."""
    found = {
        name: set(reads(inside)) - READ_BY_NAME.get(name, set()) - ALLOWED.get(name, set())
        for name, inside in calls().items()
        if name != WRITER
    }
    assert found.pop(READER)
    assert not any(found.values()), found


def test_one_module_maps_files() -> None:
    """Another user who truncates a mapped file ends the program by SIGBUS: contents() decides what is mapped."""
    mapping = ("mmap.mmap", "mmap", "np.memmap")
    found = {
        name for name, inside in calls().items() if any(ast.unparse(one.func) in mapping for one in inside)
    }
    assert found == {READER, *MAPPED_MEMORY}
