"""How a message spells a parameter: as the entry point in use does.

    command line             --learning-rate is -1
    form of a pipeline       train_learning_rate is -1
    Python, a pod of a job   learning_rate is -1

An entry point chooses the spelling; code that writes a message calls `option`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Spelling = Callable[[str], str]
"""From a parameter's name, as it is declared, to how the user writes it."""


def as_name(name: str) -> str:
    """The declared name itself: `learning_rate`."""
    return name


def as_option(name: str) -> str:
    """An option of the command line: `--learning-rate`."""
    return f"--{name.replace('_', '-')}"


# Of the process, not of a context: messages are also written in threads, which start without a context.
_in_use: list[Spelling] = [as_name]


def option(name: str) -> str:
    """A parameter as the user of this process writes it."""
    return _in_use[-1](name)


@contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Spell parameters like this for a while."""
    _in_use.append(spelling)
    try:
        yield
    finally:
        _in_use.pop()


def respell(spelling: Spelling) -> None:
    """Spell parameters like this from now on, until the innermost `spelled` ends."""
    _in_use[-1] = spelling
