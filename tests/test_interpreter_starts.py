"""No interpreter that the host starts imports from the working directory, where another user may have planted a package."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memleak_android.host import pytest_plugin
from memleak_android.host.commands import record
from tests.test_structure import ROOT

# Starts workers by `python -c`; sets PYTHONSAFEPATH meanwhile.
POOLS = {"host/fleet/engines.py"}
# The inner pytest imports as the outer one does.
ALLOWED = {
    "host/pytest_plugin.py": {
        "['--', sys.executable, *_import_options(), '-m', 'pytest', *map(str, arguments)]"
    },
    "host/symbols/packages.py": {"'python'"},  # a manager of packages
}
PLANTED = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n"


def unsafe_starts(source: str) -> Iterator[str]:
    """Uses of sys.executable, or of an interpreter by name, that -P does not follow."""
    tree, safe = ast.parse(source), set[int]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        for at, element in enumerate(node.elts):
            if not is_interpreter(element):
                continue
            safe.add(id(element))
            option = node.elts[at + 1] if at + 1 < len(node.elts) else None
            if not (isinstance(option, ast.Constant) and option.value in ("-P", "-I")):
                yield ast.unparse(node)
    yield from (ast.unparse(node) for node in ast.walk(tree) if is_interpreter(node) and id(node) not in safe)


def is_interpreter(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Path(node.value.partition(" ")[0]).name in ("python", "python3")
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.executable", "sys._base_executable")


def test_every_start_is_safe() -> None:
    found, pools = dict[str, set[str]](), set[str]()
    for path in sorted([*(ROOT / "host").rglob("*.py"), *(ROOT / "unwind").rglob("*.py")]):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text()
        if unsafe := set(unsafe_starts(source)) - ALLOWED.get(name, set()):
            found[name] = unsafe
        if "multiprocessing" in source or "ProcessPoolExecutor" in source:
            pools.add(name)
    assert not found
    assert pools == POOLS


def test_the_search_finds_what_starts() -> None:
    for line in (
        "run([sys.executable, '-m', 'x'])",
        "run((sys.executable, *words))",
        "run([sys.executable])",
        "run(f'{sys.executable} -m x', shell=True)",
        "os.execv(sys.executable, words)",
        "run(['/usr/bin/python3', 'x.py'])",
        "run('python -m x', shell=True)",
    ):
        assert list(unsafe_starts(line)), line
    assert not list(unsafe_starts("run(['--', sys.executable, '-P', '-m', 'x'])"))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with packages that touch `ran`."""
    for package in ("memleak_android", "memleak_android/host", "multiprocessing"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(PLANTED)
    (tmp_path / "memleak_android/host/__main__.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(folder: Path) -> list[Path]:
    return list(folder.rglob("ran"))


def test_the_session_of_a_device(planted: Path) -> None:
    with record._start(["--version"]) as session:
        assert session.wait() == 0, session.communicate()[1]
    assert not ran(planted)


@pytest.mark.parametrize("package", ["click", "msgspec", "numpy"])
def test_packages_of_the_target_are_not_ours(package: str, tmp_path: Path) -> None:
    """PYTHONPATH may have those of another version of Python."""
    (tmp_path / f"{package}.py").write_text(PLANTED)
    argv = [sys.executable, "-P", "-m", "memleak_android.host", "report", "--help"]
    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert not ran(tmp_path)


def test_the_measured_pytest(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(
        subprocess, "run", lambda argv, **_: started.append(argv) or subprocess.CompletedProcess(argv, 0)
    )
    pytest_plugin._measure([], planted / "run.memleak", planted / "times", follow=False)
    monkeypatch.undo()
    (argv,) = started
    subprocess.run([*argv[: argv.index("record")], "--version"], cwd=planted, check=True, capture_output=True)
    assert not ran(planted)


@pytest.mark.parametrize(
    ("start", "imports"),
    [
        (["-m", "pytest"], True),
        (["-P", "-m", "pytest"], False),
        ([str(Path(sys.executable).with_name("pytest"))], False),
    ],
)
def test_the_inner_pytest_imports_as_the_outer(start: list[str], imports: bool, tmp_path: Path) -> None:
    (tmp_path / "test_options.py").write_text(
        "from memleak_android.host.pytest_plugin import _import_options\n"
        f"def test_options(): assert _import_options() == {[] if imports else ['-P']}\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *start, "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_workers_of_many_recordings(planted: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `fleet` is not installed")
    from memleak_android.host.fleet.engines import LocalEngine
    from memleak_android.host.fleet.processing import Settings
    from memleak_android.host.fleet.sources import list_sources

    (planted / "a.memleak").write_bytes(b"no recording")
    before = dict(os.environ)
    listed, _ = list_sources([str(planted / "a.memleak")])
    assert len(list(LocalEngine(1).run(listed, Settings()))) == 1
    assert not ran(planted) and dict(os.environ) == before
