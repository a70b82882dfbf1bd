"""Sizes of the packages, cycles among their modules, and the budget of the whole.

    python tools/structure.py [--since COMMIT] [--check]

Prints files, lines, median file and share of each package, before and after with --since, every cycle of
imports, and what exceeds the budget; with --check not the packages. Exits with 1 if there is a cycle, if a
package holds more than 16 % of all lines, or if the budget is exceeded.
"""

from __future__ import annotations

import argparse
import importlib
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import grimp

from ddpipe.__main__ import COMMANDS
from ddpipe.parameters import Parameters, declared

ROOT = Path(__file__).parent.parent
PRODUCT = ROOT / "components" / "ddpipe"
LARGEST_SHARE = 0.16

# The budget: a new option replaces one. So do a new command, file and line.
MOST = {"parameters": 130, "commands": 19, "files": 220, "lines": 40_000}
SHORT = 150
"""Lines up to which a file with a single importer, in its own package, belongs into that importer."""

Sizes = Mapping[str, list[int]]


def sizes_of(package: Path) -> Sizes:
    """Lines of each file, by the package that holds it; modules at the top are a package of their own."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else "(top level)"
        sizes[name].append(len(path.read_text().splitlines()))
    return sizes


def sizes_at(commit: str) -> Sizes:
    """The same, at an earlier commit."""
    archive = subprocess.run(
        ["git", "archive", commit, "components/ddpipe"],  # noqa: S607 - git of the machine
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        return sizes_of(Path(folder, "components", "ddpipe"))


def table(sizes: Sizes) -> str:
    """A line per package, the largest first."""
    total = sum(map(sum, sizes.values()))
    rows = ["package        files   lines  median   share"]
    for name, lines in sorted(sizes.items(), key=lambda item: -sum(item[1])):
        share = sum(lines) / total
        rows.append(
            f"{name:14}{len(lines):6}{sum(lines):8}{statistics.median(lines):8.0f}{100 * share:7.1f}%"
        )
    rows.append(f"{'all':14}{sum(map(len, sizes.values())):6}{total:8}")
    return "\n".join(rows)


def cycles() -> list[str]:
    """Groups of modules that import each other."""
    graph = grimp.build_graph("ddpipe")
    unvisited, found = set(graph.modules), []
    while unvisited:
        module = unvisited.pop()
        group = {
            other
            for other in graph.find_downstream_modules(module)
            if other in graph.find_upstream_modules(module)
        }
        if group:
            unvisited -= group
            found.append(" <-> ".join(sorted({module, *group})))
    return found


def counts() -> dict[str, int]:
    """What the budget limits; parameters by their names, which groups may share."""
    lines = [len(path.read_text().splitlines()) for path in PRODUCT.rglob("*.py")]
    for module in grimp.build_graph("ddpipe").find_matching_modules("ddpipe.**"):
        if not module.endswith("__main__") and ".pipelines" not in module:
            importlib.import_module(module)
    groups = [Parameters]
    for group in groups:
        groups += group.__subclasses__()
    names = {item.name for group in groups for item in declared(group)}
    return {
        "parameters": len(names),
        "commands": len(COMMANDS),
        "files": len(lines),
        "lines": sum(lines),
    }


def to_merge() -> list[str]:
    """Short files with a single importer, which is in the same package."""
    graph, found = grimp.build_graph("ddpipe"), []
    for path in sorted(PRODUCT.rglob("*.py")):
        module = ".".join(path.relative_to(PRODUCT.parent).with_suffix("").parts)
        entry = path.stem.startswith("__") or path.parent.name == "commands"
        if entry or len(path.read_text().splitlines()) > SHORT:
            continue
        importers = graph.find_modules_that_directly_import(module)
        if len(importers) == 1 and module.rpartition(".")[0] == importers.pop().rpartition(".")[0]:
            found.append(module)
    return found


def main() -> int:
    """Print both tables and the cycles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="show the sizes at this commit first")
    parser.add_argument("--check", action="store_true", help="leave out the table of packages")
    arguments = parser.parse_args()
    since = arguments.since
    if since:
        print(f"at {since}:\n{table(sizes_at(since))}\n")  # noqa: T201 - what this command is for
    now = sizes_of(PRODUCT)
    found = cycles()
    used, short = counts(), to_merge()
    print(  # noqa: T201
        *([] if arguments.check else [table(now)]),
        *(f"cycle: {cycle}" for cycle in found),
        f"cycles: {len(found)}",
        *(f"{name}: {count}, at most {MOST[name]}" for name, count in used.items()),
        *(f"a single importer, and at most {SHORT} lines: {module}" for module in short),
        sep="\n",
    )
    total = sum(map(sum, now.values()))
    too_large = any(sum(lines) > LARGEST_SHARE * total for lines in now.values())
    return int(bool(found or short) or too_large or any(count > MOST[name] for name, count in used.items()))


if __name__ == "__main__":
    sys.exit(main())
