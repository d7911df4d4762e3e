"""This machine as a device without root, some of whose programs have answers of their own."""

import re
from collections.abc import Sequence

from memleak_android.host.machine.local.machine import LocalMachine
from memleak_android.host.machine.target import Answer, AppUser


class DeviceHere(LocalMachine):
    """answers: by the first word of a command, or of the script behind sh -c. `<MARK>` is the mark that the command has.

    asked: the commands that were run. users: who ran each, None for the shell.
    """

    name = "device x"
    is_local = False
    has_root = False

    def __init__(self, **answers: Answer | str) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []
        self.users: list[AppUser | None] = []

    def run(self, argv: Sequence[str], *, run_as: AppUser | None = None, **options: object) -> Answer:  # type: ignore[override]
        self.asked.append(list(argv))
        self.users.append(run_as)
        word = argv[2].split()[0] if argv[0] == "sh" and len(argv) > 2 else argv[0]
        answer = self.answers.get(word, self.answers.get(argv[0]))
        if isinstance(answer, str):
            mark = next((word for word in argv if re.fullmatch("[0-9a-f]{32}", word)), "")
            return Answer(0, answer.replace("<MARK>", mark).encode(), b"")
        return answer or super().run(argv)
