"""The form of errors' messages (CONTRIBUTING, Language 10): lower case, a colon or a semicolon, no full stop, named actors."""

import re

import pytest

from tests.messages import Message, messages

ABBREVIATIONS = r"[A-Z]{2}|[A-Z][a-z]*[A-Z]|BPF|CFI|LEB128|DWARF|Python|SELinux|Linux|GNU"


@pytest.mark.parametrize(
    ("room", "text"),
    [
        ("host/commands", "no target; name one by --pid N, --package APP, --all or -- CMD"),
        ("device/agent/inject", "process {} has ended (name another one)"),
        ("unwind/cfi", "unknown CIE version {}"),
    ],
)
def test_they_are_found(room: str, text: str) -> None:
    assert text in {message.text for message in messages() if message.room == room}


def test_each_has_the_form_of_an_error() -> None:
    def is_wrong(message: Message) -> bool:
        text = message.text.strip()
        starts_large = text[:1].isupper() and not re.match(ABBREVIATIONS, text)
        vague = re.search(
            r"\b(please|told|somebody|nobody|whoever|invalid|illegal|oops)\b", text, re.IGNORECASE
        )
        return starts_large or text.endswith((".", "!")) or bool(vague)

    wrong = [f"{message.path}:{message.line}: {message.text}" for message in messages() if is_wrong(message)]
    assert not wrong
