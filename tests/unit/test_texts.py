"""The list of every text that a user can read."""

from __future__ import annotations

import texts

SOURCE = '''
class Options:
    epochs: int = parameter(15, "Number of epochs.")

@group.command("ls")
def ls() -> None:
    """List the runs."""
    _log.info("found %d runs", 3)
    click.echo(f"{name} is gone")
    raise DataError(what="no such run", which=name, seen="there is none", do="List the runs.")
'''


def test_texts_are_found_with_their_line_and_kind() -> None:
    found = {(text.line, text.kind, text.text) for text in texts.texts_in(SOURCE, "some.py")}
    assert found == {
        (3, "help", "Number of epochs."),
        (7, "help", "List the runs."),
        (8, "log", "found %d runs"),
        (9, "output", "{name} is gone"),
        (10, "what", "no such run"),
        (10, "seen", "there is none"),
        (10, "do", "List the runs."),
    }


def test_a_moved_text_counts_as_unchanged() -> None:
    before = list(texts.texts_in(SOURCE, "a.py"))
    after = list(texts.texts_in("\n\n" + SOURCE.replace("Number of", "How many"), "b.py"))
    table = {line.split()[0]: line.split()[1:] for line in texts.changes(before, after).splitlines()[1:]}
    assert table["help"] == ["2", "2", "1", "1"]
    assert table["all"] == ["7", "7", "1", "1"]
