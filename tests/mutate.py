"""How many small deliberate changes of the code do the tests notice? `make mutate` runs this.

    python tests/mutate.py data storage/s3.py [--tests "tests/unit/test_storage.py ..."]

The tool, mutmut, changes one thing at a time (a comparison, a constant, an argument) and runs the tests that
call the changed function. It works on a copy in .mutants, where it goes on after an interruption. A change
that no test notices survives: it wants a better test, or a reason in words. Texts for people are not changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent.parent
COPY = HERE / ".mutants"
NOTICED = ("killed", "timeout")

SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
pytest_add_cli_args_test_selection = {tests}
do_not_mutate_patterns = ['^\\s*(what|do)=', '^\\s*f?".*"[.,)]*$', 'log\\.(info|warning)\\(']
timeout_constant = 15.0
use_git_change_detection = false
process_isolation = "forkserver"
"""


def copied(modules: list[str], tests: list[str]) -> None:
    """The tree as mutmut wants it: packages below src/."""
    shutil.copytree(HERE / "components", COPY / "src", dirs_exist_ok=True)
    for name in ("tests", "pipelines"):
        shutil.copytree(HERE / name, COPY / name, dirs_exist_ok=True)
    files = [f"src/ddpipe/{module}" + ("" if module.endswith(".py") else "/*") for module in modules]
    settings = SETTINGS.format(files=files, tests=tests)
    (COPY / "pyproject.toml").write_text((HERE / "pyproject.toml").read_text() + settings)


def mutmut(*arguments: str) -> str:
    """Its standard output; progress goes to the terminal."""
    mutated = COPY / "mutants" / "src"
    mutated.mkdir(parents=True, exist_ok=True)  # a folder made later would not be looked into for imports
    command = [sys.executable, "-m", "mutmut", *arguments]
    environment = os.environ | {"PYTHONPATH": str(mutated)}
    output = sys.stderr if arguments[0] == "run" else subprocess.PIPE
    return subprocess.run(command, cwd=COPY, env=environment, check=True, stdout=output, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="+", help="folders or files below components/ddpipe")
    parser.add_argument("--tests", default="tests/unit", help="files or folders of tests")
    parser.add_argument("--processes", default=os.cpu_count(), type=int)
    given = parser.parse_args()
    copied(given.modules, given.tests.split())
    mutmut("run", "--max-children", str(given.processes))
    outcomes = re.findall(r"^\s+(\S+): (.+)$", mutmut("results", "--all", "true"), re.MULTILINE)
    folders = Counter((name.split(".")[1], outcome in NOTICED) for name, outcome in outcomes)
    for folder in sorted({folder for folder, _ in folders}):
        noticed, missed = folders[folder, True], folders[folder, False]
        share = noticed / (noticed + missed)
        print(f"{folder}: {share:.1%} of {noticed + missed} changes were noticed")  # noqa: T201
    for name, outcome in outcomes:
        if outcome not in NOTICED:
            print(f"\n{name}: {outcome}\n{mutmut('show', name)}")  # noqa: T201


if __name__ == "__main__":
    main()
