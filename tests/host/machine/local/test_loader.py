"""The objects that a command loads, as its own linker lists them, and the file that runs for a name."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from memleak_android.host.errors import TargetError
from memleak_android.host.machine.local.loader import (
    command_objects,
    interpreter_of,
    load_order,
    resolve_command,
)
from tests.support.gcc import gcc

LD_SO = "/lib64/ld-linux-x86-64.so.2"
PROGRAMS = (
    "bash", "cat", "curl", "find", "gcc", "gdb", "git", "jq", "ls", "openssl", "perl", "python3",
    "sqlite3", "ssh", "systemctl", "tar", "xz",
)  # fmt: skip


def what_ld_so_says(executable: str, environment: dict[str, str], directory: Path) -> list[str]:
    variables = {**environment, "LD_TRACE_LOADED_OBJECTS": "1"}
    done = subprocess.run(
        [executable], env=variables, cwd=directory, capture_output=True, text=True, check=True
    )
    paths = (line.partition("=>")[2] or line for line in done.stdout.splitlines() if "not found" not in line)
    found = (path.rpartition("(")[0].strip() for path in paths if "/" in path)
    return [os.path.realpath(os.path.join(directory, path)) for path in found]


def what_we_say(executable: str, environment: dict[str, str], directory: Path) -> list[str]:
    return [os.path.realpath(one.path) for one in load_order(executable, environment, str(directory))[1:]]


@pytest.mark.parametrize("name", PROGRAMS)
def test_system_programs(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None or not os.path.exists(LD_SO):
        pytest.skip(f"{name} or {LD_SO} is not installed")
    executable = resolve_command(name, dict(os.environ))
    assert what_we_say(executable, {}, tmp_path) == what_ld_so_says(executable, {}, tmp_path)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Libraries and programs that find each other in every way there is."""
    if shutil.which("gcc") is None or not os.path.exists(LD_SO):
        pytest.skip(f"gcc or {LD_SO} is not installed")
    top = tmp_path_factory.mktemp("loader")

    def build(output: str, *arguments: str) -> None:
        (top / output).parent.mkdir(parents=True, exist_ok=True)
        gcc("-o", top / output, *arguments, cwd=top)

    (top / "one.c").write_text("int one(void) { return 1; }\n")
    (top / "two.c").write_text("int one(void); int two(void) { return one(); }\n")
    (top / "main.c").write_text("int two(void); int main(void) { return two(); }\n")
    shared = ("-shared", "-fPIC", "-Wl,--no-as-needed")
    for folder in ("a", "b", "c/glibc-hwcaps/x86-64-v2", "c"):
        build(f"{folder}/libone.so", *shared, "one.c", "-Wl,-soname,libone.so")
    build("runpath/libtwo.so", *shared, "two.c", "-La", "-lone", "-Wl,-rpath,$ORIGIN/../b,--enable-new-dtags")
    build("rpath/libtwo.so", *shared, "two.c", "-La", "-lone")
    build("slash/libtwo.so", *shared, "two.c", "./a/libone.so")
    gcc("-shared", "-fPIC", "-o", "noname.so", "one.c", cwd=top)
    link = ("main.c", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined")
    for name, rest in {
        "with_runpath": "-Lrunpath -ltwo -Wl,-rpath,$ORIGIN/runpath,--enable-new-dtags",
        "with_rpath": "-Lrpath -ltwo -Wl,-rpath,${ORIGIN}/rpath:$ORIGIN/a,--disable-new-dtags",
        "with_rpath_and_runpath": "-Lrunpath -ltwo -Wl,-rpath,$ORIGIN/runpath:$ORIGIN/a,--disable-new-dtags",
        "with_slash": "-Lrpath -ltwo ./noname.so -Wl,-rpath,rpath:a,--disable-new-dtags",
    }.items():
        build(name, *link, *rest.split())
    return top


ENVIRONMENTS = {
    "nothing set": {},
    "LD_LIBRARY_PATH": {"LD_LIBRARY_PATH": "{top}/a"},
    "LD_LIBRARY_PATH, second": {"LD_LIBRARY_PATH": "/nowhere:{top}/b"},
    "relative LD_LIBRARY_PATH": {"LD_LIBRARY_PATH": "a"},
    "empty part of LD_LIBRARY_PATH": {"LD_LIBRARY_PATH": ":{top}/rpath"},
    "glibc-hwcaps": {"LD_LIBRARY_PATH": "{top}/c"},
    "LD_PRELOAD by path": {"LD_PRELOAD": "{top}/b/libone.so"},
    "LD_PRELOAD by name": {"LD_PRELOAD": "libm.so.6 libutil.so.1"},
    "LD_PRELOAD of what is needed anyway": {"LD_PRELOAD": "libc.so.6"},
}


@pytest.mark.parametrize("program", ["with_runpath", "with_rpath", "with_rpath_and_runpath", "with_slash"])
@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_search_order(libraries: Path, program: str, case: str) -> None:
    environment = {name: value.format(top=libraries) for name, value in ENVIRONMENTS[case].items()}
    executable = str(libraries / program)
    ours = what_we_say(executable, environment, libraries)
    assert ours == what_ld_so_says(executable, environment, libraries)
    assert any(path.endswith("/libtwo.so") for path in ours)


def test_a_command_that_begins_with_its_linker(libraries: Path) -> None:
    program = str(libraries / "with_runpath")
    for folder in ("a", "b"):
        command = [LD_SO, "--library-path", str(libraries / folder), program, "-v"]
        assert command_objects(command, {}) == load_order(program, {"LD_LIBRARY_PATH": command[2]})


def test_a_linker_that_lists_nothing(libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "libone.so").write_text("GROUP ( libone.so.1 )\n")
    with pytest.raises(TargetError, match=r"could not list the libraries of .*: .*libone\.so"):
        load_order(str(libraries / "with_runpath"), {"LD_LIBRARY_PATH": str(tmp_path)})


def test_a_missing_library_is_skipped(libraries: Path) -> None:
    found = load_order(str(libraries / "with_slash"), {}, "/")
    assert os.path.basename(found[0].path) == "with_slash"
    assert not any(one.path.endswith("libtwo.so") for one in found)
    assert any("libc.so.6" in one.path for one in found)


@pytest.mark.parametrize("flags", [("-static",), ("-Wl,-dynamic-linker,/nowhere/ld.so",)])
def test_a_program_without_a_linker_that_runs_is_alone(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    try:
        gcc("-o", "alone", "main.c", *flags, cwd=tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("no static libc is installed (Debian: libc6-dev)")
    assert [one.path for one in load_order(str(tmp_path / "alone"), {})] == [str(tmp_path / "alone")]


def test_musl(tmp_path: Path) -> None:
    if shutil.which("musl-gcc") is None:
        pytest.skip("musl-gcc is not installed (Debian: musl-tools)")
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    (tmp_path / "main.c").write_text("int one(void); int main(void) { return one(); }\n")
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", "libone.so", "one.c"], cwd=tmp_path, check=True)
    subprocess.run(["musl-gcc", "-o", "main", "main.c", "-L.", "-lone"], cwd=tmp_path, check=True)
    environment = {"LD_LIBRARY_PATH": str(tmp_path)}
    loaded = load_order(str(tmp_path / "main"), environment)
    assert [os.path.basename(one.path) for one in loaded[:2]] == ["main", "libone.so"]
    assert len(loaded) == 3
    assert os.path.samefile(loaded[2].path, "/lib/ld-musl-x86_64.so.1")
    argv = ["/lib/ld-musl-x86_64.so.1", "--list", str(tmp_path / "main")]
    listing = subprocess.run(argv, check=True, env=environment, capture_output=True, text=True).stdout
    assert str(tmp_path / "libone.so") in listing


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_commands(tmp_path: Path) -> None:
    cat = os.path.realpath("/bin/cat")
    assert resolve_command("cat", {"PATH": "/nowhere:/bin"}) == cat
    assert resolve_command("cat", {}) == cat
    assert resolve_command("./cat", {"PATH": ""}, "/bin") == cat
    assert resolve_command("cat", {"PATH": ""}, "/bin") == cat  # an empty part is the current directory
    script(tmp_path / "cat", "", 0o644)
    # not executable: looked for further on
    assert resolve_command("cat", {"PATH": f"{tmp_path}:/bin"}) == cat


def test_scripts(tmp_path: Path) -> None:
    shell = os.path.realpath("/bin/sh")
    for name, text in (("a", "#! /bin/sh -e\n"), ("c", "echo\n"), ("d", f"#!{tmp_path}/a\n"), ("empty", "")):
        assert resolve_command(script(tmp_path / name, text), {}) == shell
    by_env = script(tmp_path / "e", "#!/usr/bin/env -S python3 -u\n")
    assert interpreter_of(by_env, {}) == ["/usr/bin/env", "-S", "python3", "-u"]
    assert interpreter_of("cat", {}) == [] and interpreter_of(f"{tmp_path}/empty", {}) == ["/bin/sh"]


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    cases = {
        "no-such-program-here": "cannot run no-such-program-here: not found; look at PATH, or give its path",
        "/no/such/file": "cannot run /no/such/file: not found",
        "": "cannot run a command without a name",
        str(tmp_path): f"cannot run {tmp_path}: it is not an executable file",
        script(tmp_path / "plain", "", 0o644): f"cannot run {tmp_path}/plain: it is not an executable file",
        script(tmp_path / "loop", f"#!{tmp_path}/loop\n"): (
            f"cannot run {tmp_path}/loop: its interpreters are nested too deep; name the program itself"
        ),
        script(tmp_path / "gone", "#!/no/such/interpreter\n"): (
            "cannot run /no/such/interpreter: No such file or directory"
        ),
    }
    for name, line in cases.items():
        with pytest.raises(TargetError) as caught:
            resolve_command(name, {"PATH": "/bin"}, "/")
        assert str(caught.value) == line
