"""How many small deliberate changes of the code do the tests notice? `make mutate` runs this.

    python tests/mutate.py launch storage/s3.py --sample 60 --seed 1

The tool, mutmut, changes one thing at a time (a comparison, a constant, an argument) and runs the tests that
call the changed function. All changes take hours, so a random sample of them gives an estimate. What no test
calls in its own process is tried with the tests that start processes. A change that no test notices survives:
it wants a better test, or a reason in tests/mutation.md. Texts for people are not changed; a change that
makes a test hang is noticed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scipy.stats import binomtest

HERE = Path(__file__).parent.parent
COPIES = HERE / ".mutants"

# The tests of each folder, as tests/unit/test_*.py, without those that start processes of torch ...
QUICK = {
    "data": "index ledger manifest reader shards dealing data_command prepare shaping",
    "evaluate": "export metrics report package results",
    "export": "export",
    "launch": "backends capacity choosing cluster companions diagnosis discovery doctor elastic fake_api"
    " following indexedjob job labels launcher limits logs orphans output ownership preflight pytorchjob"
    " quotas released_crds retrying status stopping task_config torchrun trainjob watching",
    "model": "architectures checkpoint metrics package pretrained export warm_start",
    "prepare": "dealing dicom doubts duplicates images ledger prepare prepare_options shaping sources spec"
    " split split_properties table_properties",
    "storage": "credentials lease sealed storage",
    "train": "augment journal muon objective order presets recipe saver schedule step_metrics stop"
    " training_step uploads usage warm_start training_state",
}
# ... and those, as files below tests, for what is called nowhere else.
WITH_PROCESSES = {
    "evaluate": "distributed/test_evaluation.py",
    "launch": "unit/test_local.py distributed/test_local.py distributed/test_handles.py",
    "train": "distributed/test_training.py distributed/test_strategies.py",
}
LIMIT_SECONDS = 900

# Without the two tests that read the checkout rather than run it.
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = {files}
pytest_add_cli_args = ["-k", "not backend_by_its_name and not role_of_the_images"]
pytest_add_cli_args_test_selection = {tests}
do_not_mutate_patterns = ['^\\s*(what|do)=', '^\\s*f?".*"[.,)]*$', 'log\\.(info|warning)\\(']
timeout_constant = 15.0
timeout_multiplier = 6.0
use_git_change_detection = false
process_isolation = "forkserver"
"""


class Copy:
    """A copy of the tree, as mutmut wants it: packages below src/. What is changed lies below mutants/."""

    def __init__(self, modules: list[str]) -> None:
        self.folder = modules[0].partition("/")[0]
        self.path = COPIES / self.folder
        shutil.copytree(HERE / "components", self.path / "src", dirs_exist_ok=True)
        for name in ("tests", "pipelines"):
            shutil.copytree(HERE / name, self.path / name, dirs_exist_ok=True)
        files = [f"src/ddpipe/{module}" + ("" if module.endswith(".py") else "/*") for module in modules]
        tests = [f"tests/unit/test_{name}.py" for name in QUICK[self.folder].split()]
        settings = SETTINGS.format(files=files, tests=tests)
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
        told = self.python("-m", "mutmut", "results", "--all", "true")
        return dict(re.findall(r"^\s+(\S+): (.+)$", told, re.MULTILINE))

    def is_noticed_with_processes(self, name: str) -> bool:
        """Whether a test that starts processes fails, or hangs, with this change; with "", without any."""
        tests = [f"tests/{file}" for file in WITH_PROCESSES.get(self.folder, "").split()]
        if not tests:
            return False
        command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
        environment = os.environ | {"PYTHONPATH": str(self.source), "MUTANT_UNDER_TEST": name}
        place = self.path / "mutants"
        try:
            done = subprocess.run(
                command, cwd=place, env=environment, check=False, stdout=sys.stderr, timeout=LIMIT_SECONDS
            )
        except subprocess.TimeoutExpired:
            return True
        return done.returncode != 0


def measure(copy: Copy, sample: int | None, seed: int, processes: int) -> None:
    """Print a folder's score, and each change that survived."""
    copy.make_changes()
    every = sorted(copy.outcomes())
    names = sorted(random.Random(seed).sample(every, min(sample or len(every), len(every))))
    copy.python("-m", "mutmut", "run", "--max-children", str(processes), *names, shown=True)
    found = copy.outcomes()
    outcomes = {name: found[name] for name in names}
    survivors = [name for name, outcome in outcomes.items() if outcome not in ("killed", "timeout")]
    uncalled = [name for name in survivors if outcomes[name] == "no tests"]
    if uncalled and copy.is_noticed_with_processes(""):
        raise SystemExit(f"tests of {copy.folder} fail on the code as it is")
    for name in uncalled:
        if copy.is_noticed_with_processes(name):
            survivors.remove(name)
    noticed = len(names) - len(survivors)
    low, high = binomtest(noticed, len(names)).proportion_ci(method="wilson")
    hung = sum(outcome == "timeout" for outcome in outcomes.values())
    print(  # noqa: T201
        f"{copy.folder}: {noticed} of {len(names)} changes were noticed, {hung} because a test hung: "
        f"{noticed / len(names):.0%}; of all {len(every)} {low:.0%} to {high:.0%} (95 %; seed {seed})"
    )
    for name in survivors:
        print(f"\n{copy.python('-m', 'mutmut', 'show', name)}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="+", help="folders or files below components/ddpipe")
    parser.add_argument("--sample", type=int, help="as many changes of each folder, at random; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", default=os.cpu_count(), type=int)
    given = parser.parse_args()
    for folder in dict.fromkeys(module.partition("/")[0] for module in given.modules):
        modules = [module for module in given.modules if module.partition("/")[0] == folder]
        measure(Copy(modules), given.sample, given.seed, given.processes)


if __name__ == "__main__":
    main()
