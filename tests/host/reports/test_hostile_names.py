"""Names that steer a terminal, reorder a line or look like other names: escaped wherever people or viewers read them."""

import gzip
import io
import json
import unicodedata
from dataclasses import replace

import pytest

from memleak_android.host.cli import run
from memleak_android.host.console import printable
from memleak_android.host.profile.frame import Frame
from memleak_android.host.profile.gate import GateRules, LeakLimit, judge
from memleak_android.host.profile.profile import ModuleSummary, ProcessSum, Profile, SymbolClass
from memleak_android.host.reports.base import ReportOptions
from memleak_android.host.reports.export import github
from memleak_android.host.reports.formats import FORMATS
from tests.support.builders.profiles import DECODE, MALLOC, profile
from tests.support.written import difference, written

# Of each kind one: ESC, C1's CSI, DEL, overrides and isolates of bidirectional text, marks, joiners, spaces of no width,
# a tag of the supplementary planes, line and paragraph separator, a lone surrogate, a space that is none.
EVIL = "\x1b\x9b\x7f\u202e\u202c\u2066\u2069\u200e\u061c\u200b\u200c\u200d\ufeff\u00ad\U000e0041\u2028\u2029\udc80\u00a0"
ESCAPED = EVIL.encode("unicode_escape").decode("ascii")
NAME = f"free{EVIL}kcehc"
TEXTS = [name for name, one in FORMATS.items() if not one.is_binary and name != "json"]


def hostile_frame(file: str | None) -> Frame:
    return Frame(0x7F0000001000, f"/srv/{NAME}", "aa01", 0x1000, NAME, 0, False, "eh_frame", file, 5)


def hostile_profile() -> Profile:
    site = replace(
        DECODE, frames=(MALLOC, hostile_frame(f"src/{NAME}.cc"), hostile_frame(None)), kind="user", blocks=()
    )
    made = profile(sites=(site,), notes=(NAME,))
    target = replace(made.target, command=NAME, serial=NAME)
    modules = (ModuleSummary(f"/srv/{NAME}", "aa01", SymbolClass.NONE),)
    processes = tuple(ProcessSum(pid, NAME, 23_207, 23, 23_207, site.id) for pid in (4711, 4712))
    return replace(made, target=target, modules=modules, processes=processes)


def unprintable(text: str) -> set[str]:
    return {char for char in text if not char.isprintable()} - {"\n"}


def test_every_control_format_and_surrogate_is_escaped_and_nothing_that_is_read() -> None:
    for number in range(0x110000):
        char = chr(number)
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert printable(char).isascii() and printable(char).startswith("\\")
    for read in ("std::vector<int>", "Größe", "файл", "حافظة", "内存泄漏", "🦀", "e\u0301"):
        assert printable(read) == read


@pytest.mark.parametrize("of", [hostile_profile(), judge(hostile_profile(), GateRules(LeakLimit(5)))])
@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, of: Profile) -> None:
    text = written(name, of, combined_only=True).decode()
    if name == "html":  # our own scripts and styles are not names
        text = text.partition('id="data"')[2].partition("</script>")[0]
        text = json.dumps(json.loads(text.partition(">")[2]), ensure_ascii=False)
    assert not unprintable(text)
    assert "free" in text


@pytest.mark.parametrize("name", ["pprof", "perfetto"])
def test_messages(name: str) -> None:
    data = written(name, hostile_profile(), combined_only=True)
    data = gzip.decompress(data) if name == "pprof" else data
    assert f"free{ESCAPED}kcehc".encode() in data
    assert "\u202e".encode() not in data and b"\x1b\xc2\x9b" not in data


def test_annotations_and_summary() -> None:
    of = judge(hostile_profile(), GateRules(LeakLimit(5)))
    for write in (github.write_annotations, github.write_summary):
        stream = io.StringIO()
        write(of, stream, ReportOptions())
        assert not unprintable(stream.getvalue()) and "free" in stream.getvalue()


def test_differences() -> None:
    text = difference("text", profile(sites=()), hostile_profile())
    assert not unprintable(text) and ESCAPED in text
    long = replace(DECODE, frames=(replace(MALLOC, function="x" * 1_000_000),))
    assert len(difference("text", profile(sites=()), profile(sites=(long,)))) < 3_000


def test_json_keeps_names_as_they_are() -> None:
    """It is for programs. What UTF-8 has no way to hold is U+FFFD."""
    report = json.loads(written("json", hostile_profile(), combined_only=True))
    kept = NAME.replace("\udc80", "\ufffd")
    assert [report["target"][name] for name in ("command", "serial")] == [kept, kept]
    assert report["sites"][0]["frames"][1]["function"] == kept


def test_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", f"/nowhere/{NAME}"]) == 2
    said = capsys.readouterr().err
    assert f"free{ESCAPED}kcehc" in said and not unprintable(said)
