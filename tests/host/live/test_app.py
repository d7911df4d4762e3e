"""The view itself, driven by Textual's own pilot over a fed model."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Footer, Input, Static, Tree
from textual.widgets._footer import FooterKey

from memleak_android.host.live import messages
from memleak_android.host.live.app import LiveApp, SiteTable
from memleak_android.host.live.messages import Begin, Head, Mark, Sites, ViewRequest
from memleak_android.host.live.screens import CallersScreen, OutputScreen, StackScreen, end_of_file
from memleak_android.host.live.view import sites_message
from memleak_android.host.profile.answer import Answer, AnswerState
from memleak_android.host.profile.growth import Growth, Trend
from tests.support.builders.profiles import DECODE, MALLOC, PARTIAL, SERVER, START, frame, profile, site

HEAD = Head("bpf", 61.5, 5_003, 17, 1_000_003, 997.0, 3, 1_048_573, lost_most="stacks dropped")
SMALL = site("51", 11, 97, MALLOC, frame(SERVER, "alpha[bold]red", source="/src/x.c:3"), *START)
Act = Callable[[Pilot[None], LiveApp], Awaitable[None]]


def sites() -> Sites:
    return sites_message(profile(sites=(DECODE, PARTIAL, SMALL)), 4)


def drive(act: Act, size: tuple[int, int] = (140, 30)) -> list[ViewRequest]:
    """Runs the app over the model; what it asked for."""
    wanted: list[ViewRequest] = []

    async def run() -> None:
        app = LiveApp(wanted.append)
        async with app.run_test(size=size) as pilot:
            app.take(Begin("./server --port 80", output="/nowhere", can_scan=True))
            app.take(HEAD)
            app.take(sites())
            await pilot.pause()
            await act(pilot, app)

    asyncio.run(run())
    return wanted


def driven(*wanted: ViewRequest) -> Callable[[Act], Callable[[], None]]:
    """A test that acts on the app over the model, which then has asked for this."""

    def as_test(act: Act) -> Callable[[], None]:
        def test() -> None:
            assert drive(act) == list(wanted)

        return test

    return as_test


def rows(app: LiveApp) -> list[list[str]]:
    table = app.screen_stack[0].query_one(SiteTable)
    return [[str(cell) for cell in table.get_row_at(i)] for i in range(table.row_count)]


def shown(app: LiveApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Static).render())


@driven()
async def test_head_and_table_show_the_message(pilot: Pilot[None], app: LiveApp) -> None:
    head = shown(app, "#head")
    assert (
        "./server --port 80  by bpf  1:01" in head and "5,003 bytes in 17 blocks, resident 1,048,573" in head
    )
    assert "1,000,003 allocations, 997/s\n3 lost, most: stacks dropped" in head
    assert [row[0] for row in rows(app)] == ["23,207", "997", "11"]
    assert rows(app)[0][-2:] == ["planted::innermost(unsigned long) (inlined)", "decode.cc:14"]
    status = shown(app, "#status")
    assert "3 of 4 stacks: 24,215 of 101,211 bytes; 207 without a stack" in status


@driven()
async def test_the_answer_is_the_first_line(pilot: Pilot[None], app: LiveApp) -> None:
    growth = Growth(Trend.GROWS, 20_000, 19_900, 20_100, 10**9, 9_000)
    for answer, expected in (
        (None, "./server --port 80  by bpf"),
        (Answer(AnswerState.CANNOT_TELL, "3 snapshots"), "CANNOT TELL  ./server --port 80 (pid 4711): 3"),
        (Answer(AnswerState.LEAKING, growth=growth, growing=2), "LEAKING  ./server --port 80 (pid 4711)"),
    ):
        app.take(sites_message(profile(sites=(DECODE,), answer=answer), 1))
        await pilot.pause()
        assert shown(app, "#head").startswith(expected)
    assert "grows by 1.14 ± 0.01 MiB/min: 2 places" in shown(app, "#head")
    (coloured,) = app.screen.query_one("#head", Static).render().spans
    assert coloured.end == shown(app, "#head").index("\n"), "the answer's line only"
    await pilot.resize_terminal(60, 30)
    first, second = shown(app, "#head").splitlines()[:2]
    assert first.startswith("LEAKING") and "2 places" in second, "wrapped, not cut"


@driven()
async def test_keys_and_the_mouse_sort(pilot: Pilot[None], app: LiveApp) -> None:
    await pilot.press("c")
    assert [row[1] for row in rows(app)] == ["97", "23", "1"]
    await pilot.press("c")
    assert [row[1] for row in rows(app)] == ["1", "23", "97"]
    await pilot.press("n")
    assert rows(app)[0][-2] == "alpha[bold]red+0x0"
    await pilot.click(SiteTable, offset=(5, 0))  # the first column's head
    assert [row[0] for row in rows(app)] == ["23,207", "997", "11"]


@driven()
async def test_what_grows_comes_first_until_the_user_sorts(pilot: Pilot[None], app: LiveApp) -> None:
    grown = replace(PARTIAL, growth=Growth(Trend.GROWS, 5000.0, 4900.0, 5100.0, 10**9, 500_000))
    app.take(sites_message(profile(sites=(DECODE, grown, SMALL)), 4))
    await pilot.pause()
    assert [row[0] for row in rows(app)] == ["997", "23,207", "11"]
    await pilot.press("b")
    assert [row[0] for row in rows(app)] == ["23,207", "997", "11"]


@driven()
async def test_the_chosen_stack_stays_chosen_when_the_order_changes(pilot: Pilot[None], app: LiveApp) -> None:
    await pilot.press("down", "down")
    larger = replace(SMALL, inuse_space=1 << 30)
    app.take(sites_message(profile(sites=(DECODE, PARTIAL, larger)), 3))
    await pilot.pause()
    assert rows(app)[0][0] == "1,073,741,824" and app.query_one(SiteTable).cursor_row == 0


@driven()
async def test_enter_opens_the_stack_as_plain_text(pilot: Pilot[None], app: LiveApp) -> None:
    await pilot.press("enter")
    assert isinstance(app.screen, StackScreen)
    lines = app.screen.shown.plain.splitlines()
    assert lines[0] == "23,207 bytes in 23 allocations" and "the stack is whole" in lines
    assert [line for line in lines if line.startswith("#")][1:3] == [
        "#1 planted::innermost(unsigned long) (inlined)",
        "#2 planted::decode(Packet const&)+0x1c",
    ]
    assert "   src/decode.cc:22  [server]  by eh_frame" in lines
    await pilot.press("escape", "down", "enter")
    assert "partial stack (STACK_TRUNCATED: the rest lies outside" in app.screen.shown.plain
    await pilot.press("escape", "down", "enter")
    assert "alpha[bold]red+0x0" in app.screen.shown.plain


@driven()
async def test_the_filter_narrows_and_escape_gives_all_back(pilot: Pilot[None], app: LiveApp) -> None:
    await pilot.press("slash", *"[bold]")
    assert [row[0] for row in rows(app)] == ["11"] and "filter: [bold]" in shown(app, "#status")
    await pilot.press("q", "q")  # letters are the filter's
    assert rows(app) == []
    await pilot.press("enter")  # nothing is chosen
    assert len(app.screen_stack) == 1
    await pilot.press("escape")
    assert len(rows(app)) == 3 and app.query_one("#filter", Input).value == ""


@driven()
async def test_the_tree_of_callers_opens(pilot: Pilot[None], app: LiveApp) -> None:
    await pilot.press("t")
    assert isinstance(app.screen, CallersScreen)
    tree = app.screen.query_one(Tree)
    assert str(tree.root.label) == "24,215 bytes in 121 blocks"
    labels = [str(node.label) for node in tree.root.children]
    assert labels[0] == " 96% 23,218  _start+0x21  server"
    await pilot.press("escape")


@driven(Mark("login"), messages.Save(), messages.Scan(), messages.Stop(), messages.Stop())
async def test_what_the_user_wants_is_asked_for(pilot: Pilot[None], app: LiveApp) -> None:
    await pilot.press("m", "ctrl+u", *"login", "enter", "s", "r")
    await pilot.press("m", "escape")
    await pilot.press("ctrl+c", "q")


@driven()
async def test_what_cannot_be_had_is_not_offered(pilot: Pilot[None], app: LiveApp) -> None:
    app.take(Begin("pid 4711"))
    app.refresh_bindings()
    await pilot.press("r", "o")
    assert len(app.screen_stack) == 1
    offered = {binding.description for _, binding, *_ in app.screen.active_bindings.values()}
    assert "tree" in offered and not {"refs", "output"} & offered


@driven()
async def test_notices_and_the_end(pilot: Pilot[None], app: LiveApp) -> None:
    app.take(messages.Notice("mark [bold]x: 3", True))
    await pilot.pause()
    assert [note.message for note in app._notifications] == ["mark [bold]x: 3"]
    app.take(messages.Close())
    await pilot.pause()
    assert not app.is_running


def test_before_anything_is_known() -> None:
    async def run() -> None:
        app = LiveApp(lambda wanted: None)
        async with app.run_test() as pilot:
            assert "waiting for the tracer" in shown(app, "#head")
            await pilot.press("enter", "t", "g", "slash", "escape")
            assert len(app.screen_stack) == 1

    asyncio.run(run())


@pytest.mark.parametrize("size", [(80, 24), (40, 24), (20, 10), (200, 60)])
def test_any_size(size: tuple[int, int]) -> None:
    async def act(pilot: Pilot[None], app: LiveApp) -> None:
        table = app.query_one(SiteTable)
        if size[0] >= 40:
            assert table.virtual_size.width <= size[0]
            assert table.size.height >= 5 and app.query_one(Footer).region.bottom == size[1]
        if size[0] >= 80:
            assert max(key.region.right for key in app.query(FooterKey)) <= size[0], "all keys are shown"
        await pilot.press("enter", "escape", "t", "escape")
        await pilot.resize_terminal(140, 30)
        await pilot.pause()
        assert len(table.columns) == 7

    drive(act, size)


def test_the_output_is_shown_escaped(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("output") / "out.txt"
    path.write_bytes(b"x" * (1 << 20) + b"\n\x1b]0;owned\x07[red]\xff\n" + b"last")

    async def act(pilot: Pilot[None], app: LiveApp) -> None:
        app.take(Begin("./server", output=str(path)))
        await pilot.press("o")
        assert isinstance(app.screen, OutputScreen)
        await pilot.press("q")
        assert len(app.screen_stack) == 1

    assert drive(act) == []
    size, lines = end_of_file(str(path))
    assert size == (1 << 20) + 22 and lines[-2:] == ["\\x1b]0;owned\\x07[red]�", "last"]
    assert len(lines[0]) < 1_100
    assert end_of_file("/nowhere/at/all") == (0, [])
