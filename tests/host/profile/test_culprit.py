"""Which frame answers for a stack, by what it is and by --mine, --not-mine and memleak.toml."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from memleak_android.host.errors import UsageError
from memleak_android.host.profile.culprit import called_function, own_callers, responsible_frame
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.ownership import FILE_NAME, Owner, Ownership, read_ownership
from memleak_android.host.profile.runtime_sites import PYTHON_FRAMES
from tests.support.builders.profiles import CODEC, LIBC, MALLOC, SERVER, START, frame

OWN = frame(SERVER, "handle_request(int)", 0x10, "/src/main.cc:14")
NODE, RUBY = "/usr/bin/node", "/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1"


def of(module: str, function: str) -> Frame:
    return replace(frame(LIBC, function), module=module)


def of_python(function: str) -> Frame:
    return of("/usr/lib/libpython3.11.so.1.0", function)


@pytest.mark.parametrize(
    "file",
    [
        "/usr/include/c++/12/bits/new_allocator.h:137",
        "/rustc/9fc6b431/library/alloc/src/raw_vec.rs:531",
        "/home/x/.cargo/registry/src/index.crates.io-6f17d22bba15001f/bytes-1.5.0/src/bytes.rs:12",
        "/opt/ndk/toolchains/llvm/prebuilt/linux-x86_64/sysroot/usr/include/c++/v1/vector:92",
    ],
)
def test_sources_of_libraries_do_not_answer_whatever_their_functions_are_called(file: str) -> None:
    compiled_in = frame(SERVER, "char*& grow(unsigned long)", 0, file, inlined=True)
    assert responsible_frame((MALLOC, compiled_in, OWN, *START)) == OWN


@pytest.mark.parametrize(
    "function", ["std::my_hash::operator()(int)", "operator delete_all(int)", "core::run()"]
)
def test_own_sources_answer_whatever_their_functions_are_called(function: str) -> None:
    own = frame(SERVER, function, 0, "/src/main.cc:3")
    assert responsible_frame((MALLOC, own, OWN)) == own
    assert responsible_frame((MALLOC, replace(own, file=None, line=None), OWN)) == OWN


@pytest.mark.parametrize(
    "function",
    [
        "xmalloc",
        "g_malloc0_n",
        "sqlite3DbMallocRawNN",
        "sqlite3_malloc64",
        "CRYPTO_zalloc",
        "av_mallocz",
        "zmalloc_usable",
        "ruby_xmalloc2",
        "_emalloc_56",
        "jv_mem_calloc",
        "ngx_palloc",
        "MemoryContextAllocZero",
        "lexbor_mem_chunk_init",
        "PyDataMem_UserNEW_ZEROED",
        "_PyObject_GC_New",
        "_PyObject_ArenaMmap",
        "_PyMem_ArenaAlloc",
        "_PyThreadState_BumpFramePointerSlow",
        "__rust_alloc_zeroed",
        "os::malloc(unsigned long, MEMFLAGS)",
        "memory::allocate(unsigned long)",
    ],
)
def test_wrappers_of_allocators_do_not_answer(function: str) -> None:
    assert responsible_frame((MALLOC, frame(CODEC, function), OWN)) == OWN
    assert responsible_frame((MALLOC, frame(CODEC, f"my_{function}_user"), OWN)) != OWN


def test_an_extension_answers_for_what_an_interpreter_allocates_for_it() -> None:
    api = of(NODE, "napi_create_reference")
    addon = of("/srv/addon.node", "Crc32")
    invoke = of(NODE, "FunctionCallbackWrapper::Invoke")
    enters = of(NODE, "Builtins_JSEntryTrampoline")
    run = of(NODE, "node::Start")
    assert responsible_frame((MALLOC, api, addon, invoke, enters, run)) == addon
    assert own_callers((MALLOC, api, addon, invoke, enters, run)) == [invoke]
    assert responsible_frame((MALLOC, api, enters, run, addon)) == api, "what is below is interpreted code's"
    vm = of(RUBY, "vm_exec_core")
    assert responsible_frame((MALLOC, of(RUBY, "rb_ary_new"), of("/srv/x.so", "f"), vm)).module == "/srv/x.so"  # type: ignore[union-attr]


def test_who_calls_python_answers_for_the_room_of_its_frames() -> None:
    push = of_python("_PyEvalFramePushAndInit")
    vector = of_python("_PyEval_Vector")
    switch = of("/srv/x.so", "switch")
    assert responsible_frame((MALLOC, push, vector, switch, EVALUATES)) == switch


def test_an_arena_of_python_answers_for_itself_whatever_filled_it() -> None:
    arena, plugin = of_python("new_arena"), of("/srv/x.so", "make")
    frames = (
        MALLOC,
        of_python("_PyObject_ArenaMmap"),
        arena,
        of_python("_PyObject_Malloc"),
        plugin,
        EVALUATES,
    )
    assert responsible_frame(frames) == arena
    assert own_callers(frames) == []


def test_the_innermost_name_answers_in_an_interpreter_without_symbols() -> None:
    """An exported function has a name; one nameless function makes all strings, the leaked and the others."""
    nameless, plus, vm = of(RUBY, ""), of(RUBY, "rb_str_plus"), of(RUBY, "vm_exec_core")
    assert responsible_frame((MALLOC, nameless, nameless, plus, nameless, vm)) == plus
    assert responsible_frame((MALLOC, nameless, vm)) == nameless, "the evaluation loop never answers"


def test_a_program_that_is_only_called_like_an_interpreter_answers_for_itself() -> None:
    plugin, own = of("/srv/plugin.so", "on_request"), of("/srv/node", "Server::handle")
    inlined = replace(
        frame(SERVER, "push_back", 0, "/usr/include/c++/12/bits/stl_vector.h:3"), module="/srv/node"
    )
    assert responsible_frame((MALLOC, inlined, own, plugin, of("/srv/node", "main"))) == own
    python = of("/usr/bin/python3.11", "PyList_Append")
    assert responsible_frame((MALLOC, python, plugin)) == plugin, "its frames may lack the evaluation loop"


def test_what_the_responsible_frame_calls_to_allocate() -> None:
    wrapper = frame(CODEC, "g_malloc0")
    library = frame(SERVER, "std::vector::push_back", 0, "/usr/include/c++/12/vector:1")
    assert called_function((MALLOC, wrapper, OWN)) == wrapper
    assert called_function((MALLOC, wrapper, library, OWN)) == library, "the outermost"
    assert called_function((MALLOC, OWN, *START)) is None
    new = frame(SERVER, "operator new(unsigned long)")
    assert called_function((MALLOC, new, OWN)) is None
    assert called_function((MALLOC,)) is None


def test_callers_are_the_programs_own() -> None:
    library = frame(SERVER, "std::__invoke", 0, "/usr/include/c++/12/bits/invoke.h:61")
    main = frame(SERVER, "main", 0x47, "/src/main.cc:88")
    assert own_callers((MALLOC, library, OWN, library, main, *START)) == [main]
    assert own_callers((MALLOC,)) == []


EVALUATES = of("/usr/bin/python3.11", "_PyEval_EvalFrameDefault")
TUPLE = of("/usr/bin/python3.11", "PyTuple_New")


def python(function: str, source: str) -> Frame:
    return replace(frame(LIBC, function, 0, source), module=PYTHON_FRAMES)


HANDLE, SERVE = python("Worker.handle", "/srv/app.py:88"), python("serve", "/srv/app.py:9")
CTYPES = of("/usr/lib/python3.11/lib-dynload/_ctypes.so", "_call_function_pointer")
LOADS = python("loads", "/usr/lib/python3.11/json/__init__.py:346")
MADE = python("Point.__init__", "<string>:3")
COMMAND = python("<module>", "<string>:1")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ((TUPLE, HANDLE, SERVE, EVALUATES), HANDLE),
        ((of("/usr/lib/libffi.so.8.1.2", ""), CTYPES, HANDLE, SERVE, EVALUATES), HANDLE),
        ((of("/app/site-packages/x.libs/libffi-a3f2.so.8", "ffi_call"), CTYPES, HANDLE, EVALUATES), HANDLE),
        ((TUPLE, LOADS, HANDLE, EVALUATES), HANDLE),
        ((TUPLE, LOADS, EVALUATES, TUPLE, HANDLE, EVALUATES), HANDLE),  # called back by the interpreter
        ((TUPLE, python("encode", "/venv/lib/python3.11/site-packages/x/y.py:3"), EVALUATES, SERVE), SERVE),
        ((TUPLE, python("_load", "<frozen importlib._bootstrap>:690"), EVALUATES, HANDLE, EVALUATES), HANDLE),
        ((TUPLE, MADE, HANDLE, EVALUATES), HANDLE),
        ((TUPLE, COMMAND, EVALUATES), COMMAND),
        (
            (TUPLE, python("<module>", "<ipython-input-3-a1>:1"), EVALUATES),
            python("<module>", "<ipython-input-3-a1>:1"),
        ),
        ((TUPLE, LOADS, EVALUATES, *START), LOADS),
        ((TUPLE, python("[function in Python]", ""), EVALUATES, HANDLE, EVALUATES), HANDLE),
        ((frame(CODEC, "decode"), TUPLE, HANDLE, EVALUATES), frame(CODEC, "decode")),  # an extension
    ],
)
def test_code_in_python_answers_for_what_the_interpreter_allocates(
    frames: tuple[Frame, ...], expected: Frame
) -> None:
    assert responsible_frame((MALLOC, *frames)) == expected


def test_callers_and_called_functions_in_python() -> None:
    frames = (MALLOC, TUPLE, LOADS, HANDLE, EVALUATES, TUPLE, SERVE, EVALUATES, *START)
    assert called_function(frames) == LOADS
    assert own_callers(frames)[:1] == [SERVE]
    assert called_function((MALLOC, TUPLE, HANDLE, EVALUATES)) is None


HANDLER = frame(SERVER, "handle_request(int)", 0x10, "/src/app/main.cc:14")
VENDORED = frame(SERVER, "parse(char const*)", 0x20, "/src/app/third_party/json.cc:3")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("src/app", True),
        ("app/", True),
        ("third_party/json.cc", True),
        ("*.cc", True),
        ("json.cc", True),
        ("/src/app", True),
        ("/app", False),
        ("ap", False),
        ("son.cc", False),
        (Path(SERVER).name, True),
        (Path(SERVER).name[1:], False),
    ],
)
def test_a_pattern_names_a_file_a_module_or_a_folder(pattern: str, fits: bool) -> None:
    owner = Ownership(mine=(pattern,)).owner(VENDORED.module, VENDORED.file)
    assert owner is (Owner.MINE if fits else None)


def test_the_longest_pattern_decides() -> None:
    ownership = Ownership(mine=("src", "third_party/json.cc"), not_mine=("src/app/third_party",))
    assert ownership.owner("", "/src/app/main.cc") is Owner.MINE
    assert ownership.owner("", "/src/app/third_party/zlib.c") is Owner.OTHERS
    assert Ownership(mine=("third_party/json.cc",), not_mine=("app",)).owner("", VENDORED.file) is Owner.MINE


def owned(*frames: Frame, by: Ownership) -> Frame | None:
    return responsible_frame([replace(each, owner=by.owner(each.module, each.file)) for each in frames])


def test_my_innermost_function_answers_else_the_innermost_that_is_not_another_s() -> None:
    stack = (MALLOC, frame(CODEC, "decode"), VENDORED, HANDLER, *START)
    assert owned(*stack, by=Ownership()) == stack[1]
    for rules in (Ownership(mine=("main.cc",)), Ownership(not_mine=(Path(CODEC).name, "third_party"))):
        answering = owned(*stack, by=rules)
        assert answering is not None and answering.function == HANDLER.function
    assert owned(*stack, by=Ownership(mine=("elsewhere",))) == stack[1]
    library = frame(LIBC, "fopen")  # a system library may be mine; an allocator never answers
    mine = owned(MALLOC, library, HANDLER, by=Ownership(mine=(Path(LIBC).name,)))
    assert mine is not None and mine.function == "fopen"


def test_the_project_file_is_read_up_to_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_text('mine = ["outside"]')
    inner = tmp_path / "repository" / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert read_ownership((), ()) == Ownership((), ())
    (tmp_path / "repository" / ".git").mkdir()
    assert read_ownership((), ()) == Ownership((), ())
    (tmp_path / "repository" / FILE_NAME).write_text('mine = ["src"]\nnot-mine = ["src/third_party"]')
    assert read_ownership(("lib.so",), ()) == Ownership(("lib.so", "src"), ("src/third_party",))
    (inner / FILE_NAME).write_text("mine = []")
    assert read_ownership((), ("a",)) == Ownership((), ("a",))


@pytest.mark.parametrize(
    "text", ["mine = 3", "mime = []", "mine = [", "[tool]\nmine = []", "mine = [\udc80]"]
)
def test_a_project_file_that_says_something_else_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=FILE_NAME):
        read_ownership((), ())


def test_another_user_s_project_file_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE_NAME).write_text('mine = ["src"]')
    monkeypatch.chdir(tmp_path)
    if os.geteuid():
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    else:
        os.chown(FILE_NAME, 4242, 4242)
    assert read_ownership((), ()) == Ownership((), ())
