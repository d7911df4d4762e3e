"""Screens above the table: a stack, the tree of callers, the command's output, a question."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Input, RichLog, Static, Tree
from textual.widgets.tree import TreeNode

from memleak_android.host.live.messages import SiteLine, Sites
from memleak_android.host.live.rows import held_text, matches
from memleak_android.host.reports.base import bounded
from memleak_android.unwind.file_reading import opened

OUTPUT_BYTES = 64 << 10  # of a command's output that are shown: its end
OUTPUT_REFRESH_S = 0.5
CLOSE: BindingType = Binding("escape,q", "app.pop_screen", "back")


class StackScreen(Screen[None]):
    """One stack: all frames, inlined ones too, how each was found, and why the stack is truncated."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, site: SiteLine, sites: Sites) -> None:
        super().__init__()
        self.shown = stack_text(site, sites)

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(self.shown, markup=False)
        yield Footer()


def stack_text(site: SiteLine, sites: Sites) -> Text:
    """The stack as lines, innermost first."""
    text = Text(f"{site.about}\n\n")
    width = len(str(max(len(site.frames) - 1, 0)))
    for index, number in enumerate(site.frames):
        frame = sites.frames[number]
        text.append(f"#{index:<{width}} ", "dim")
        text.append(frame.function, "bold" if index == site.own else "")
        for part in filter(None, (frame.source, frame.module and f"[{frame.module}]")):
            text.append(f"\n{' ' * (width + 2)}{part}" if part == frame.source else f"  {part}", "dim")
        text.append(f"  by {frame.way}\n" if frame.way else "\n", "dim")
    text.append(f"partial stack ({site.end})\n" if site.end else "the stack is whole\n")
    return text


class CallersScreen(Screen[None]):
    """The tree of callers, from the thread's start inward."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, sites: Sites, wanted: str) -> None:
        super().__init__()
        self._sites = sites
        self._root = callers(sites, wanted)

    def compose(self) -> ComposeResult:
        yield Tree[Caller](
            Text(held_text(self._root.space, self._root.objects, self._sites.unit)), self._root
        )
        yield Footer()

    def on_mount(self) -> None:
        tree: Tree[Caller] = self.query_one(Tree)
        self._open(tree.root)
        tree.focus()

    def on_tree_node_expanded(self, event: Tree.NodeExpanded[Caller]) -> None:
        self._fill(event.node)

    def _open(self, node: TreeNode[Caller]) -> None:
        """Expands the chain of only children."""
        while node.data is not None:
            self._fill(node)
            node.expand()
            if len(node.children) != 1:
                return
            node = node.children[0]

    def _fill(self, node: TreeNode[Caller]) -> None:
        """Creates a node's children when the user opens it."""
        if node.data is None or node.children:
            return
        for callee in node.data.largest_first:
            node.add(self._label(callee), callee, allow_expand=bool(callee.callees))

    def _label(self, one: Caller) -> Text:
        frame = self._sites.frames[one.frame]
        share = one.space / max(self._root.space, 1)
        label = Text(f"{share:4.0%} {one.space:,}  ")
        return label.append(frame.function, "bold").append(f"  {frame.source or frame.module}", "dim")


class OutputScreen(Screen[None]):
    """The end of the command's output."""

    BINDINGS: ClassVar[list[BindingType]] = [CLOSE]

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._bytes_shown = -1

    def compose(self) -> ComposeResult:
        yield Static(f"output of the command: {bounded(self._path)}", markup=False, classes="title")
        yield RichLog(wrap=True, markup=False, highlight=False)
        yield Footer()

    def on_mount(self) -> None:
        self._show_end()
        self.set_interval(OUTPUT_REFRESH_S, self._show_end)

    def _show_end(self) -> None:
        size, lines = end_of_file(self._path)
        if size == self._bytes_shown:
            return
        self._bytes_shown = size
        log = self.query_one(RichLog)
        log.clear()
        for line in lines:
            log.write(Text(line))


def end_of_file(path: str) -> tuple[int, list[str]]:
    """The file's size and last lines, printable; empty if unreadable."""
    try:
        with opened(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - OUTPUT_BYTES))
            data = file.read(OUTPUT_BYTES)
    except OSError:
        return 0, []
    return size, [bounded(line) for line in data.decode("utf-8", "replace").expandtabs().split("\n")]


class QuestionScreen(ModalScreen[str]):
    """Asks for one line; "" if the user left it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "back")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        yield Static(self._question, markup=False)
        yield Input(self._value, max_length=100)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss("")


@dataclass(slots=True)
class Caller:
    """frame: a number in Sites.frames, -1 = the root. Sums are those of all stacks that pass through here."""

    frame: int
    space: int = 0
    objects: int = 0
    callees: dict[int, Caller] = field(default_factory=dict)

    @property
    def largest_first(self) -> list[Caller]:
        return sorted(self.callees.values(), key=lambda one: (-one.space, one.frame))


def callers(sites: Sites, wanted: str = "") -> Caller:
    """Builds the tree of the stacks that the filter shows; regions, which hold the heap, are left out."""
    root = Caller(-1)
    for site in sites.sites:
        if site.kind == "mmap" or not matches(site, sites.frames, wanted):
            continue
        node = root
        node.space += site.space
        node.objects += site.objects
        for number in reversed(site.frames):
            node = node.callees.setdefault(number, Caller(number))
            node.space += site.space
            node.objects += site.objects
    return root
