"""A case's package and what it requires, in a folder of its own, by the registry's own client."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from bench import debian
from bench.programs import Program
from bench.real_leaks.cases import LOOPS, Case

FOLDER = Path("build/real-leaks").absolute()


@dataclass(frozen=True, slots=True)
class Missing(Exception):
    """Why a version cannot be run here, as the client said it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Client:
    """words: before the names of packages; `{folder}` and `{python}` are filled in. between: name and version."""

    words: tuple[str, ...]
    between: str


@dataclass(frozen=True, slots=True)
class Language:
    """command: what runs a loop. variable: names folders to it. Paths are patterns in the package's folder."""

    command: tuple[str, ...]
    variable: str = ""
    folders: tuple[str, ...] = ()


DEBIAN = "debian"  # a version is a suite: its packages with all that they depend on, libc included
REGISTRIES = {
    "pypi": Client(
        ("{python}", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", "{folder}"),
        "==",
    ),
    "npm": Client(("npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", "{folder}"), "@"),
    DEBIAN: Client((), ""),
}
_PERL = ("share/perl5", "lib/*/perl5/5*", "share/perl/5*", "lib/*/perl/5*")
_RUBY = ("lib/ruby/3*", "lib/*/ruby/3*")
LANGUAGES = {
    ".py": Language(("{python}",), "PYTHONPATH", (".",)),
    ".js": Language(("node",), "NODE_PATH", ("node_modules",)),
    ".pl": Language(("root/usr/bin/perl",), "PERL5LIB", tuple(f"root/usr/{name}" for name in _PERL)),
    ".rb": Language(
        ("root/usr/bin/ruby3*", "--disable-gems"), "RUBYLIB", tuple(f"root/usr/{name}" for name in _RUBY)
    ),
    ".php": Language(("root/usr/bin/php8*", "-n")),
    ".c": Language(()),
}


def program(case: Case, version: str) -> Program:
    """The loop on that version, installed if it is not yet."""
    folder = FOLDER / f"{case.package.replace('/', '+')}-{version}"
    done = folder.with_name(f"{folder.name}.installed")
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _install(case, version, folder)
        done.touch()
    loop = LOOPS / case.loop
    language = LANGUAGES[loop.suffix]
    command = [
        _python(case.python) if word == "{python}" else _found(folder, word) for word in language.command
    ]
    environment = {"PYTHONDONTWRITEBYTECODE": "1"}
    if language.variable:
        folders = [path for name in language.folders for path in sorted(glob(str(folder / name)))]
        environment[language.variable] = ":".join(folders)
    if loop.suffix == ".c":
        loop = _compiled(case, loop, folder)
    if case.registry == DEBIAN:
        command = [*debian.loader(folder / "root"), *command]
    return Program(f"{case.id} {version}", (*command, str(loop)), environment)


def _found(folder: Path, word: str) -> str:
    """The file in the package's folder, where the word is a pattern of one."""
    return str(next(folder.glob(word), word)) if "/" in word else word


def _compiled(case: Case, loop: Path, folder: Path) -> Path:
    """A program in C, linked with the package's libraries."""
    libraries = [next(folder.rglob(name)) for name in case.libraries]
    paths = [f"-Wl,-rpath,{library.parent}" for library in libraries]
    output = folder / loop.stem
    words = ["cc", "-g", "-O1", "-o", output, loop, *libraries, "-Wl,--allow-shlib-undefined", *paths]
    _run([str(word) for word in words])
    return output


def _python(version: str) -> str:
    if not version:
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    pyenv = [str(folder) for folder in root.glob(f"versions/{version}.*/bin")]  # its shims do not run all
    found = shutil.which(f"python{version}", path=os.pathsep.join([*pyenv, os.environ["PATH"]]))
    if found is None:
        raise Missing(f"no python{version} here")
    return found


def _install(case: Case, version: str, folder: Path) -> None:
    if case.registry == DEBIAN:
        if reason := debian.unpack(version, [case.package, *case.requires], folder):
            raise Missing(reason)
        return
    client = REGISTRIES[case.registry]
    filled = {"{folder}": str(folder), "{python}": _python(case.python)}
    words = [filled.get(word, word) for word in client.words]
    _run([*words, f"{case.package}{client.between}{version}", *case.requires])


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, env=os.environ, timeout=900)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{argv[0]}: {error}") from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit {done.returncode}"]
        raise Missing(next((line for line in said if "rror" in line), said[-1]).strip()[:200])
