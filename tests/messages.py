"""Every message of an error, room by room, to be read in one go: `make messages`.

Python's are the arguments of what is raised and of errors that are returned, the agent's those of the functions that report
a failure. `{}` is a datum.
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ERROR = re.compile(r"(Error|Refused)$")
_REPORTED = re.compile(r'\bml_(?:\w*_)?(?:error|log|refuse|fail)\(((?:[^;"]|"(?:[^"\\]|\\.)*")*?)\);')
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DATUM = re.compile(r"%[-#0-9.*]*(?:ll|l|z|h)*[a-zA-Z]")


@dataclass(frozen=True, slots=True)
class Message:
    path: str  # from the root
    line: int
    text: str

    @property
    def room(self) -> str:
        return str(Path(self.path).parent)


@functools.cache
def messages() -> list[Message]:
    """All, by room, file and line."""
    found = [message for path in sorted(ROOT.glob("host/**/*.py")) for message in _of_python(path)]
    found += [message for path in sorted(ROOT.glob("unwind/**/*.py")) for message in _of_python(path)]
    found += [message for path in sorted(ROOT.glob("device/agent/**/*.c")) for message in _of_c(path)]
    return sorted(found, key=lambda message: (message.room, message.path, message.line))


def _of_python(path: Path) -> Iterator[Message]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    raised = {node.exc for node in nodes if isinstance(node, ast.Raise)}
    for node in nodes:
        if isinstance(node, ast.Call) and (node in raised or _ERROR.search(ast.unparse(node.func))):
            texts = [_text(argument) for argument in node.args]
            if text := "; ".join(text for text in texts if text):
                yield Message(str(path.relative_to(ROOT)), node.lineno, text)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{}" for part in node.values)
    return ""


def _of_c(path: Path) -> Iterator[Message]:
    source = path.read_text()
    for call in _REPORTED.finditer(source):
        if text := "".join(_LITERAL.findall(call[1])):
            line = source.count("\n", 0, call.start()) + 1
            yield Message(str(path.relative_to(ROOT)), line, _DATUM.sub("{}", text))


if __name__ == "__main__":
    for room, inside in groupby(messages(), lambda message: message.room):
        print(f"\n{room}")
        for message in inside:
            print(f"  {Path(message.path).name}:{message.line}  {message.text}")
