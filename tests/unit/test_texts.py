"""The list of every text that a user can read, and the words that no text or name contains."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

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

MEANINGS = {404: "the run does not exist", 500: "%d-%m"}
"""By status."""
'''

PRIVATE = re.compile(
    r"(?<![a-z])(told|tells|heeds?|anew|whoever|whatever|mend(s|ed)?|dealt|deals?[ _]out|hands?[ _]on|"
    r"(go|goes|going|went)[ _]on|in[ _](its|their)[ _]place|is[ _]at[ _]it)(?![a-z])",
    re.IGNORECASE,
)
"""Words with which this project once had its own meanings; standard English has clearer ones."""


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
        (12, "text", "the run does not exist"),
    }


def test_texts_of_a_template_are_what_it_shows() -> None:
    page = (
        "{# a comment on it #}\n<style>\np { margin: 0 auto }\n</style>\n<p>{{ n }} images were found</p>\n"
    )
    assert list(texts.texts_in(page, "some.html.j2")) == [
        texts.Text("some.html.j2", 5, "page", "{{ n }} images were found")
    ]


def test_a_moved_text_counts_as_unchanged() -> None:
    before = list(texts.texts_in(SOURCE, "a.py"))
    after = list(texts.texts_in("\n\n" + SOURCE.replace("Number of", "How many"), "b.py"))
    table = {line.split()[0]: line.split()[1:] for line in texts.changes(before, after).splitlines()[1:]}
    assert table["help"] == ["2", "2", "1", "1"]
    assert table["all"] == ["8", "8", "1", "1"]


def test_no_private_word_is_used() -> None:
    """In code, names, comments and documentation alike."""
    listed = subprocess.run(
        [
            "git",
            "ls-files",
            "--",
            ":!*.txt",
            ":!*.png",
            ":!*.gz",
            ":!tests/golden/formats",
            ":!tests/unit/test_texts.py",
        ],
        cwd=texts.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [path for name in listed.stdout.splitlines() if (path := Path(texts.ROOT, name)).is_file()]
    assert len(files) > 100
    found = [
        f"{path.relative_to(texts.ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE.search(line)
    ]
    assert not found, "\n".join(found)
