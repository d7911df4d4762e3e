"""The live view: counters, and the table of stacks, sorted, filtered, opened."""

import os
from collections.abc import Callable
from textwrap import wrap
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

from memleak_android.host.live.messages import (
    Begin,
    Close,
    Head,
    Mark,
    Notice,
    Save,
    Scan,
    SessionMessage,
    SiteLine,
    Sites,
    Stop,
    ViewRequest,
)
from memleak_android.host.live.rows import Order, columns_for, duration, held_text, ordered
from memleak_android.host.live.screens import CallersScreen, OutputScreen, QuestionScreen, StackScreen
from memleak_android.host.reports.units import count_text, plural

NAME_CELLS_MAX = 200  # of a name in the table; the stack's own screen shows more
ANSWER_LINES_MAX = 2
DEFAULT_MARK = "mark"


class SiteTable(DataTable[Text]):
    """The table, with the action of Enter in the footer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "stack")]


class LiveApp(App[None]):
    """Shows messages passed to take(); user requests go to `ask`. when_ready: called once take() may be used."""

    TITLE = "memleak-android"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; background: $panel; }
    #status { height: 1; padding: 0 1; }
    #filter { display: none; height: 3; }
    #filter.open { display: block; }
    DataTable { height: 1fr; }
    .plain DataTable > .datatable--cursor { text-style: reverse; }
    .plain DataTable > .datatable--header { text-style: underline; }
    .plain Tree > .tree--cursor { text-style: reverse; }
    .title { padding: 0 1; background: $panel; }
    QuestionScreen { align: center middle; }
    QuestionScreen > Static { width: 60; max-width: 100%; padding: 0 1; background: $panel; }
    QuestionScreen > Input { width: 60; max-width: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "end", "end"),
        Binding("slash", "filter", "filter"),
        Binding("b", "order('space')", "sort", key_display="bcgn"),
        Binding("c", "order('objects')", "by count", show=False),
        Binding("g", "order('rate')", "by growth", show=False),
        Binding("n", "order('function')", "by name", show=False),
        Binding("a", "order('oldest')", "by age", show=False),
        Binding("v", "order('verdict')", "by verdict", show=False),
        Binding("t", "callers", "tree"),
        Binding("m", "mark", "mark"),
        Binding("s", "save", "save"),
        Binding("r", "look", "refs"),
        Binding("o", "output", "output"),
        Binding("escape", "leave_filter", show=False),
    ]

    def __init__(
        self, ask: Callable[[ViewRequest], None], when_ready: Callable[[], None] = lambda: None
    ) -> None:
        is_plain = "NO_COLOR" in os.environ  # Textual keeps greys unless it uses the terminal's own colours
        super().__init__(ansi_color=True if is_plain else None)
        self.set_class(is_plain, "plain")
        self._ask = ask
        self._when_ready = when_ready
        self._begin = Begin("")
        self._head: Head | None = None
        self.sites: Sites | None = None
        self._chosen_order: Order | None = None
        self.wanted = ""  # by the filter
        self._shown: list[SiteLine] = []
        self._mark = DEFAULT_MARK
        self._is_ending = False
        self._columns = 80  # of the terminal

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Input(id="filter", placeholder="function, file or module", max_length=200)
        yield SiteTable(cursor_type="row", zebra_stripes=True, id="sites")
        yield Static("waiting for the first snapshot", id="status", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._columns = self.size.width
        self._table.focus()
        self._show_head()
        self._when_ready()

    @property
    def _table(self) -> SiteTable:
        return self.screen_stack[0].query_one(SiteTable)

    @property
    def order(self) -> Order:
        """The user's choice, else by growth once something grows."""
        grows = self.sites is not None and any(site.rate > 0 for site in self.sites.sites)
        return self._chosen_order or Order("rate" if grows else "space")

    def take(self, message: SessionMessage) -> None:
        """Handles a message of the session, in the app's thread."""
        match message:
            case Begin():
                self._begin = message
                self._show_head()
            case Head():
                self._head = message
                self._show_head()
            case Sites():
                self.sites = message
                self._show_sites()
            case Notice():
                self.notify(
                    message.text, severity="warning" if message.is_problem else "information", markup=False
                )
            case Close():
                self.exit()

    def on_resize(self, event: Resize) -> None:
        self._columns = event.size.width  # before Textual stores it
        self._show_head()
        self._show_sites()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hides keys without effect in this session; other screens than the table bind no letters."""
        if action == "look":
            return self._begin.can_scan and len(self.screen_stack) == 1
        if action == "output":
            return bool(self._begin.output) and len(self.screen_stack) == 1
        return len(self.screen_stack) == 1 or action not in _OF_TABLE

    # ---- drawing

    def _show_head(self) -> None:
        head, width = self._head, max(self._columns - 2, 10)
        lines = [self._begin.target or "no target"]
        if head is None:
            lines.append("waiting for the tracer")
        else:
            resident = f", resident {head.resident_bytes:,}" if head.resident_bytes is not None else ""
            lines[0] += f"  by {head.tracer}  {duration(head.elapsed_s)}"
            lines.append(f"{held_text(head.space, head.objects, head.unit)}{resident}")
            lines.append(f"{head.allocations:,} allocations, {head.allocations_per_s:,.0f}/s")
            if head.lost:
                lines.append(f"{head.lost:,} lost, most: {head.lost_most}")
        text = Text("\n".join(line if len(line) <= width else f"{line[: width - 1]}…" for line in lines))
        if self.sites is not None and self.sites.answer:
            answer = "\n".join(wrap(self.sites.answer, width)[:ANSWER_LINES_MAX])
            text = Text.assemble((answer, self.sites.style), "\n", text)
        self.screen_stack[0].query_one("#head", Static).update(text)

    def _show_sites(self) -> None:
        sites = self.sites
        if sites is None:
            return
        table, chosen = self._table, self._chosen
        self._shown = ordered(sites, self.order, self.wanted)
        columns, top = columns_for(self._columns), table.scroll_y
        table.clear(columns=True)
        left = self._columns - sum(column.width + 2 for column in columns) - 2
        for column in columns:
            arrow = ("▲" if self.order.is_reversed else "▼") if column.key == self.order.key else ""
            width = column.width + max(0, left) if column.key == "function" else column.width
            title = plural(sites.unit) if column.key == "space" else column.title
            table.add_column(Text(title + arrow), width=width, key=column.key)
        for site in self._shown:
            cells = (
                Text(
                    column.text(site, sites)[:NAME_CELLS_MAX],
                    justify="right" if column.is_number else "left",
                    no_wrap=True,
                    overflow="ellipsis",
                )
                for column in columns
            )
            table.add_row(*cells)
        row = next((i for i, site in enumerate(self._shown) if chosen and site.id == chosen.id), None)
        if row is not None:
            table.move_cursor(row=row, animate=False, scroll=False)
            table.scroll_to(y=top, animate=False)
        self._show_status(sites)
        self._show_head()

    def _show_status(self, sites: Sites) -> None:
        shown = sum(site.space for site in self._shown if site.kind != "mmap")
        parts = [
            f"{len(self._shown):,} of {sites.stacks:,} stacks: {shown:,} of {count_text(sites.space, sites.unit)}"
        ]
        if sites.unattributed_space:
            parts.append(f"{sites.unattributed_space:,} without a stack")
        if self.wanted:
            parts.append(f"filter: {self.wanted}")
        parts.append(f"snapshot at {duration(sites.elapsed_s)}")
        self.screen_stack[0].query_one("#status", Static).update(Text("; ".join(parts)))

    @property
    def _chosen(self) -> SiteLine | None:
        row = self._table.cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    # ---- requests of the user

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        self.action_order(event.column_key.value or "space")

    def on_data_table_row_selected(self) -> None:
        self.action_open()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self.wanted = event.value
            self._show_sites()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self._table.focus()

    def action_order(self, key: str) -> None:
        self._chosen_order = self.order.by(key)
        self._show_sites()

    def action_open(self) -> None:
        chosen = self._chosen
        if chosen is not None and self.sites is not None:
            self.push_screen(StackScreen(chosen, self.sites))

    def action_callers(self) -> None:
        if self.sites is not None:
            self.push_screen(CallersScreen(self.sites, self.wanted))

    def action_output(self) -> None:
        self.push_screen(OutputScreen(self._begin.output))

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.add_class("open")
        line.focus()

    def action_leave_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.value = ""
        line.remove_class("open")
        self._table.focus()

    def action_mark(self) -> None:
        def answered(name: str | None) -> None:
            if name:
                self._mark = name
                self._ask(Mark(name))

        self.push_screen(QuestionScreen("the mark's name", self._mark), answered)

    def action_save(self) -> None:
        self._ask(Save())

    def action_look(self) -> None:
        self._ask(Scan())

    def action_end(self) -> None:
        text = (
            "ending: aborted"
            if self._is_ending
            else "ending: the last snapshot, then the report; again aborts"
        )
        self.notify(text, markup=False)
        self._is_ending = True
        self._ask(Stop())


_OF_TABLE = ("filter", "order", "callers", "mark", "save", "leave_filter")
