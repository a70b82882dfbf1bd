"""Sizes of the packages and cycles among their modules.

    python tools/structure.py [--since COMMIT]

Prints files, lines, median file and share of each package, before and after with --since, and every cycle of
imports. Exits with 1 if there is a cycle, or if a package holds more than 16 % of all lines.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).parent.parent
LARGEST_SHARE = 0.16

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


def main() -> int:
    """Print both tables and the cycles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="show the sizes at this commit first")
    since = parser.parse_args().since
    if since:
        print(f"at {since}:\n{table(sizes_at(since))}\n")  # noqa: T201 - what this command is for
    now = sizes_of(ROOT / "components" / "ddpipe")
    found = cycles()
    print(table(now), *(f"cycle: {cycle}" for cycle in found), f"cycles: {len(found)}", sep="\n")  # noqa: T201
    total = sum(map(sum, now.values()))
    return int(bool(found) or any(sum(lines) > LARGEST_SHARE * total for lines in now.values()))


if __name__ == "__main__":
    sys.exit(main())
