"""How many small deliberate changes of the code do the tests notice? `make mutate` runs this.

    python tools/mutate.py launching storage/s3.py --sample 60 --seed 1

The tool, mutmut, changes one thing at a time (a comparison, a constant, an argument) and runs the tests that
call the changed function. All changes take hours, so a random sample of them gives an estimate. What no test
calls in its own process is tried with the tests that start processes; with --cluster, what is left is tried
with faults on the cluster of KUBECONFIG, some minutes each. A change that no test notices survives: it wants
a better test, or a reason in docs/mutation.md. Texts are not changed; a change that makes a test
hang is noticed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from scipy.stats import binomtest

from ddpipe.jobs import BACKENDS

HERE = Path(__file__).parent.parent
COPIES = HERE / ".mutants"

# The tests of each folder, as folders below tests/unit ...
QUICK = {
    "data": "data commands/test_data.py prepare",
    "evaluate": "evaluate model export commands/test_results.py",
    "export": "export",
    "jobs": "jobs launching",
    "kube": "kube launching",
    "launching": "launching kube jobs",
    "model": "model evaluate export train/test_warm_start.py",
    "notebook": "notebook",
    "prepare": "prepare sources",
    "sources": "sources prepare",
    "storage": "storage",
    "train": "train",
}
# ... and those, as files below tests, for what is called nowhere else.
WITH_PROCESSES = {
    "evaluate": "distributed/test_evaluation.py",
    "launching": "unit/processes/test_local.py distributed/test_local.py distributed/test_handles.py",
    "train": "distributed/test_training.py distributed/test_strategies.py",
}
# The tests on a cluster; of the matrix of faults, the column of the backend that a change is in, or this one.
ON_A_CLUSTER = dict.fromkeys(("jobs", "kube", "launching"), "cluster/test_faults.py")
USUAL_BACKEND = "pytorchjob"
LIMIT_SECONDS = 900

READ = ("pipelines", "images", "docs", "benchmarks")
"""Folders that tests read."""

# The tests of `make test`, without the two that read the checkout rather than run it.
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
pytest_add_cli_args = ["-m", "not slow", "-k", "not backend_by_its_name and not role_of_the_images"]
pytest_add_cli_args_test_selection = {tests}
do_not_mutate_patterns = ['^\\s*(what|do)=', '^\\s*f?".*"[.,)]*$', 'log\\.(info|warning)\\(']
timeout_constant = 15.0
timeout_multiplier = 6.0
use_git_change_detection = false
process_isolation = "forkserver"
also_copy = {read}
"""


class Copy:
    """A copy of the tree, as mutmut wants it: packages below src/. What is changed lies below mutants/."""

    def __init__(self, modules: list[str]) -> None:
        self.folder = modules[0].partition("/")[0]
        self.path = COPIES / self.folder
        shutil.copytree(HERE / "components", self.path / "src", dirs_exist_ok=True)
        for name in ("tests", *READ):
            shutil.copytree(HERE / name, self.path / name, dirs_exist_ok=True)
        files = [f"src/ddpipe/{module}" + ("" if module.endswith(".py") else "/*") for module in modules]
        tests = [f"tests/unit/{name}" for name in QUICK[self.folder].split()]
        settings = SETTINGS.format(files=files, tests=tests, read=list(READ))
        (self.path / "pyproject.toml").write_text((HERE / "pyproject.toml").read_text() + settings)
        self.source = self.path / "mutants" / "src"
        self.source.mkdir(parents=True, exist_ok=True)  # made later, it would not be looked into for imports

    def python(self, *arguments: str, shown: bool = False) -> str:
        """Its standard output; if that is to be shown, nothing."""
        environment = os.environ | {"PYTHONPATH": str(self.source)}
        command, output = [sys.executable, *arguments], sys.stderr if shown else subprocess.PIPE
        done = subprocess.run(command, cwd=self.path, env=environment, check=True, stdout=output, text=True)
        return done.stdout or ""

    def make_changes(self) -> None:
        """All that there can be: mutmut has no command for this alone."""
        self.python("-c", "from mutmut.__main__ import *; copy_src_dir(); create_mutants(os.cpu_count())")

    def outcomes(self) -> dict[str, str]:
        """What became of each change, in mutmut's words."""
        output = self.python("-m", "mutmut", "results", "--all", "true")
        return dict(re.findall(r"^\s+(\S+): (.+)$", output, re.MULTILINE))

    def is_noticed(self, name: str, arguments: list[str]) -> bool:
        """Whether one of these tests fails, or hangs, with a change; with "", on the code as it is."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", *arguments]
        environment = os.environ | {"PYTHONPATH": str(self.source), "MUTANT_UNDER_TEST": name}
        place = self.path / "mutants"
        try:
            done = subprocess.run(
                command, cwd=place, env=environment, check=False, stdout=sys.stderr, timeout=LIMIT_SECONDS
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0

    def unnoticed(self, names: list[str], tests: Callable[[str], list[str]]) -> list[str]:
        """Those of some changes that further tests do not notice either."""
        if names and self.is_noticed("", tests("")):
            raise SystemExit(f"tests of {self.folder} fail on the code as it is")
        return [name for name in names if not self.is_noticed(name, tests(name))]


def measure(copy: Copy, sample: int | None, seed: int, processes: int, *, cluster: bool) -> None:
    """Print a folder's score, and each change that survived."""
    copy.make_changes()
    every = sorted(copy.outcomes())
    names = sorted(random.Random(seed).sample(every, min(sample or len(every), len(every))))
    copy.python("-m", "mutmut", "run", "--max-children", str(processes), *names, shown=True)
    found = copy.outcomes()
    survivors = [name for name in names if found[name] not in ("killed", "timeout")]
    if with_processes := WITH_PROCESSES.get(copy.folder):
        uncalled = [name for name in survivors if found[name] == "no tests"]
        left = copy.unnoticed(uncalled, lambda _: [f"tests/{file}" for file in with_processes.split()])
        survivors = [name for name in survivors if name not in uncalled or name in left]
    hung = sum(found[name] == "timeout" for name in names)
    log(copy, "changes", survivors, names, every, f"{hung} because a test hung; seed {seed}")
    if cluster and copy.folder in ON_A_CLUSTER:
        survivors = copy.unnoticed(survivors, lambda name: on_a_cluster(copy.folder, name))
        log(copy, "changes with the cluster", survivors, names, every, f"seed {seed}")
    for name in survivors:
        print(f"\n{copy.python('-m', 'mutmut', 'show', name)}")  # noqa: T201


def on_a_cluster(folder: str, name: str) -> list[str]:
    """What a change is tried with on a cluster."""
    backend = next((backend for backend in BACKENDS if f".{backend}." in name), USUAL_BACKEND)
    return [f"tests/{ON_A_CLUSTER[folder]}", "-k", backend]


def log(copy: Copy, what: str, survivors: list[str], names: list[str], every: list[str], more: str) -> None:
    """Print how many changes were noticed."""
    noticed = len(names) - len(survivors)
    low, high = binomtest(noticed, len(names)).proportion_ci(method="wilson")
    print(  # noqa: T201
        f"{copy.folder}: {noticed} of {len(names)} {what} were noticed: {noticed / len(names):.0%}; "
        f"of all {len(every)} {low:.0%} to {high:.0%} (95 %; {more})"
    )


def main() -> None:
    """Print the share of changes that the tests notice, and the changes that they do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="+", help="folders or files below components/ddpipe")
    parser.add_argument("--sample", type=int, help="as many changes of each folder, at random; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", default=os.cpu_count(), type=int)
    parser.add_argument("--cluster", action="store_true", help="try survivors on a cluster, too")
    given = parser.parse_args()
    for folder in dict.fromkeys(module.partition("/")[0] for module in given.modules):
        modules = [module for module in given.modules if module.partition("/")[0] == folder]
        measure(Copy(modules), given.sample, given.seed, given.processes, cluster=given.cluster)


if __name__ == "__main__":
    main()
