"""Which frame answers for a stack: not a wrapper of an allocator, not a library's source, not an interpreter."""

from dataclasses import replace

import pytest

from memleak_android.host.profile.culprit import called_function, own_callers, responsible_frame
from memleak_android.host.profile.profile import Frame
from memleak_android.host.profile.runtime_sites import PYTHON_FRAMES
from tests.support.builders.profiles import CODEC, LIBC, MALLOC, SERVER, START, frame

OWN = frame(SERVER, "handle_request(int)", 0x10, "/src/main.cc:14")
NODE, RUBY = "/usr/bin/node", "/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1"


def of(module: str, function: str) -> Frame:
    return replace(frame(LIBC, function), module=module)


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
        "_PyObject_GC_New",
        "__rust_alloc_zeroed",
        "os::malloc(unsigned long, MEMFLAGS)",
    ],
)
def test_wrappers_of_allocators_do_not_answer(function: str) -> None:
    assert responsible_frame((MALLOC, frame(CODEC, function), OWN)) == OWN
    assert responsible_frame((MALLOC, frame(CODEC, f"my_{function}_user"), OWN)) != OWN


def test_an_extension_answers_for_what_an_interpreter_allocates_for_it() -> None:
    api = of(NODE, "napi_create_reference")
    addon, invoke, enters = (
        of("/srv/addon.node", "Crc32"),
        of(NODE, "FunctionCallbackWrapper::Invoke"),
        of(NODE, "Builtins_JSEntryTrampoline"),
    )
    run = of(NODE, "node::Start")
    assert responsible_frame((MALLOC, api, addon, invoke, enters, run)) == addon
    assert own_callers((MALLOC, api, addon, invoke, enters, run)) == [invoke]
    assert responsible_frame((MALLOC, api, enters, run, addon)) == api, "what is below is interpreted code's"
    vm = of(RUBY, "vm_exec_core")
    assert responsible_frame((MALLOC, of(RUBY, "rb_ary_new"), of("/srv/x.so", "f"), vm)).module == "/srv/x.so"  # type: ignore[union-attr]


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
    wrapper, library = (
        frame(CODEC, "g_malloc0"),
        frame(SERVER, "std::vector::push_back", 0, "/usr/include/c++/12/vector:1"),
    )
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
