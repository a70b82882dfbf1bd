"""List every text that a user can read: help texts, messages of errors, log lines, pages.

    python tools/texts.py                            all texts
    python tools/texts.py components/ddpipe/train    those of a folder or file
    python tools/texts.py --since COMMIT             how many there are and how many changed since then

Each is printed with its file and line. It is taken from the syntax tree, so nothing is imported; what an
f-string fills in is shown as {source}. Of templates, the lines outside of tags are listed.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("components/ddpipe", "pipelines")
PARTS = ("what", "which", "seen", "do")
"""The four parts of an error."""
LOGS = {"info", "warning", "error", "exception", "debug"}
PRINTS = {"echo", "secho", "say", "_say", "fail", "print", "tell", "report"}
REFUSALS = {"BadParameter", "UsageError", "refuse", "refused", "Unreadable", "ValueError"}
HELP_AT = {"parameter": 1, "StepResult": 2}
"""The position of the help text among the arguments of these."""
PATTERNS = {"compile", "fullmatch", "search", "sub"}
"""The first argument of these is a regular expression."""
PROSE = re.compile(r"[A-Za-z]{2,} (\S+ )?[A-Za-z]{2,}")
"""Words with a space between them, unlike a name, a number or a format."""
TAGS = re.compile(r"{%.*?%}|{#.*?#}|<(style|script)\b.*?</\1>|<[^>]*>", re.DOTALL)
"""What a template does not show; what it fills in is kept."""


@dataclass(frozen=True, slots=True, order=True)
class Text:
    """A text.

    Attributes:
        path: Its file, relative to the repository.
        line: Where it starts.
        kind: help, one of the four parts of an error, problem, log, output, page, or text for any other.
        text: The text.
    """

    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def texts_in(source: str, path: str) -> Iterator[Text]:
    """The texts of one file.

    Args:
        source: Its content.
        path: Its name, for the answer.
    """
    if path.endswith(".j2"):
        yield from _page(source, path)
        return
    tree = ast.parse(source)
    listed: set[ast.AST] = set()
    for node in ast.walk(tree):
        for kind, value in _candidates(node):
            text = _rendered(value)
            if " " in text:
                listed.update(ast.walk(value))
                yield Text(path, value.lineno, kind, text)
    yield from _others(tree, path, listed)


def _others(tree: ast.Module, path: str, listed: set[ast.AST]) -> Iterator[Text]:
    """Prose that is not an argument of a known function, such as an entry of a table of messages."""
    for node in ast.walk(tree):
        if node in listed:
            continue
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                listed.add(docstring)
            case ast.Call(args=[pattern, *_]) if _name(node.func) in PATTERNS:
                listed.add(pattern)
            case ast.JoinedStr() | ast.Constant(value=str()):
                listed.update(ast.walk(node))
                if PROSE.search(text := _rendered(node)):
                    yield Text(path, node.lineno, "text", text)


def _page(source: str, path: str) -> Iterator[Text]:
    """What a template shows, line by line."""
    shown = TAGS.sub(lambda tag: " " + "\n" * tag[0].count("\n"), source)
    for number, line in enumerate(shown.splitlines(), 1):
        if PROSE.search(line):
            yield Text(path, number, "page", " ".join(line.split()))


def _candidates(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The expressions of a node that may be texts, and of what kind each is."""
    match node:
        case ast.Call():
            yield from _of_call(node)
        case ast.FunctionDef(body=[ast.Expr(value=ast.Constant() as first), *_]) if _is_command(node):
            yield "help", first
        case ast.AnnAssign(target=ast.Name(id="what" | "heading" as name), value=ast.Constant() as value):
            yield ("help" if name == "heading" else "what"), value
        case ast.Expr(value=ast.Yield(value=ast.Constant(value=str()) | ast.JoinedStr() as value)):
            yield "problem", value


def _of_call(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = _name(call.func)
    given = {item.arg: item.value for item in call.keywords if item.arg}
    if "help" in given:
        yield "help", given["help"]
    if (at := HELP_AT.get(name)) is not None and len(call.args) > at:
        yield "help", call.args[at]
    if "what" in given:
        yield from ((part, given[part]) for part in PARTS if part in given)
    if call.args and name in LOGS and isinstance(call.func, ast.Attribute):
        yield "log", call.args[0]
    if name in PRINTS:
        yield from (("output", value) for value in call.args)
    if name in REFUSALS:
        yield from (("problem", value) for value in call.args)


def _is_command(function: ast.FunctionDef) -> bool:
    """Whether the docstring is what --help shows."""
    calls = [item for item in function.decorator_list if isinstance(item, ast.Call)]
    return any(_name(call.func) in {"command", "group"} for call in calls)


def _name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _rendered(value: ast.expr) -> str:
    """A text as it is written, on one line; empty for anything else."""
    match value:
        case ast.Constant(value=str(text)):
            return " ".join(text.split())
        case ast.JoinedStr(values=parts):
            return " ".join("".join(_part(part) for part in parts).split())
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return f"{_rendered(left)}{_rendered(right)}"
        case ast.IfExp(body=first, orelse=second):
            return " | ".join(filter(None, [_rendered(first), _rendered(second)]))
    return ""


def _part(part: ast.expr) -> str:
    match part:
        case ast.FormattedValue(value=inside):
            return f"{{{ast.unparse(inside)}}}"
        case ast.Constant(value=text):
            return str(text)
    return ""


def now(folders: list[str]) -> list[Text]:
    """The texts of the working tree."""
    files = [path for folder in folders for path in _sources(ROOT / folder)]
    return sorted(text for path in files for text in texts_in(path.read_text(), str(path.relative_to(ROOT))))


def _sources(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted([*place.rglob("*.py"), *place.rglob("*.j2")])


def then(commit: str, folders: list[str]) -> list[Text]:
    """The texts of a commit."""
    names = _git("ls-tree", "-r", "--name-only", commit, "--", *folders).splitlines()
    files = [name for name in names if name.endswith((".py", ".j2"))]
    return sorted(text for name in files for text in texts_in(_git("show", f"{commit}:{name}"), name))


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def changes(before: list[Text], after: list[Text]) -> str:
    """A table of counts by kind; a text that only moved counts as unchanged."""
    old, new = (Counter((text.kind, text.text) for text in texts) for texts in (before, after))
    kept, lines = old & new, [f"{'kind':8} {'before':>7} {'now':>7} {'changed or new':>15} {'gone':>7}"]
    for kind in [*sorted({kind for kind, _ in (old | new)}), ""]:
        counts = [sum(n for (one, _), n in texts.items() if kind in {one, ""}) for texts in (old, new, kept)]
        had, has, same = counts
        lines.append(f"{kind or 'all':8} {had:7} {has:7} {has - same:15} {had - same:7}")
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="*", default=SOURCES, help="Folders or files (default: all sources).")
    parser.add_argument("--since", metavar="COMMIT", help="Count what changed since this commit.")
    given = parser.parse_args()
    found = now(list(given.places))
    table = changes(then(given.since, list(given.places)), found) if given.since else ""
    sys.stdout.write(table or "\n".join([*map(str, found), f"{len(found)} texts"]))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
