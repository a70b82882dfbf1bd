"""How many small deliberate changes of the code do the tests notice? `make mutate` runs this.

    python tools/mutate.py launching storage/s3.py --sample 60 --seed 1

One thing at a time is changed (a comparison, a constant, an argument, a call left out), in a copy of the
checkout. It is tried with the tests that run its line: each file of the package's own tests is run once
before, to see the lines of each test. Processes that have torch already run them, as to import it takes
longer than most of them. What they do not notice is tried with the tests of other packages that use the code,
and then with slow ones and those that start processes. A random sample gives an estimate. What no test
notices survives: it wants a better test, or a reason in docs/mutation.md. Messages are not changed; a change
that makes a test hang is noticed.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path

import pytest
from scipy.stats import binomtest

HERE = Path(__file__).parent.parent
COPIES = Path(tempfile.gettempdir(), "ddpipe-mutants")  # in the checkout, tests would object to them

# What else tries a change that its own package does not notice, as folders and files below tests/unit ...
OTHERS = {
    "data": "commands/test_data.py prepare train/test_auto.py train/test_step_metrics.py",
    "evaluate": "model export commands/test_results.py test_summary.py test_api.py test_reuse.py",
    "jobs": "launching",
    "kube": "launching",
    "launching": "kube jobs processes test_tracker.py",
    "model": "evaluate export train/test_warm_start.py",
    "prepare": "sources",
    "sources": "prepare",
    "train": "model/test_trained_on.py model/test_own.py export/test_resolution.py test_api.py test_reuse.py "
    "test_validation.py test_newer_formats.py jobs/test_job.py tune search",
}
# ... and what then tries a change that none of these notices, as files below tests, slow ones among them. The
# package's own are first: it is not known which lines run in processes that tests start.
WITH_PROCESSES = {
    "data": "unit/data distributed/test_training.py",
    "evaluate": "unit/evaluate pipelines/test_components.py pipelines/test_gated.py",
    "launching": "unit/launching unit/processes/test_local.py distributed/test_local.py "
    "distributed/test_handles.py",
    "train": "unit/train pipelines/test_components.py distributed/test_training.py "
    "distributed/test_strategies.py distributed/test_budget.py",
}
LIMIT_SECONDS = 900

LARGE = ["torch", "torchvision", "scipy.stats", "sklearn.metrics", "matplotlib.figure"]
"""What tests import and no change touches: a process imports it once, and is forked for each change."""

NO_PLUGINS = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""With "0" torch does not import ddpipe, which would be that of this checkout."""

# Of one file: the tests that run a line of the product, by the product's file; "" stands for code that runs
# in no test, such as a fixture.
Lines = Mapping[str, Mapping[int, Sequence[str]]]

OPERATORS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "/"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
}
"""Each operator, and what it becomes."""
SILENT = {"what", "which", "seen", "do", "help", "log", "_log", "TypeVar"}
"""Keywords of messages, the logger, and what only a type checker reads: not changed."""


@dataclass(frozen=True)
class Change:
    """One part of a file, the text that takes its place, and the first line of the statement it is in."""

    file: str
    line: int
    start: int
    end: int
    new: str

    def of(self, source: bytes) -> bytes:
        """The file with this change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def shown(self, source: bytes) -> str:
        """Its line before and after."""
        line = source[: self.start].count(b"\n")
        old, new = source.splitlines()[line], self.of(source).splitlines()[line]
        return f"{self.file}:{line + 1}\n  - {old.decode().strip()}\n  + {new.decode().strip()}"


class Changes(ast.NodeVisitor):
    """Every change of a file that could be made."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.found, self.statement = file, source, list[Change](), 0
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.visit(ast.parse(source))

    def visit(self, node: ast.AST) -> None:
        """A statement counts as run if its first line is."""
        before = self.statement
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        super().visit(node)
        self.statement = before

    def change(self, node: ast.expr | ast.stmt, new: str) -> None:
        """Note that a node can become another text."""
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        self.found.append(Change(self.file, self.statement, start, end, new))

    def operator(self, left: ast.expr, operator: ast.AST, right: ast.expr) -> None:
        """Note that an operator between two operands can be another one."""
        start = self.starts[(left.end_lineno or 0) - 1] + (left.end_col_offset or 0)
        end = self.starts[right.lineno - 1] + right.col_offset
        between, (old, new) = self.source[start:end].decode(), OPERATORS.get(type(operator), ("\0", ""))
        if between.count(old) == 1:
            self.found.append(Change(self.file, self.statement, start, end, between.replace(old, new)))

    def visit_Compare(self, node: ast.Compare) -> None:
        """Every comparison of a chain."""
        for left, operator, right in zip(
            [node.left, *node.comparators], node.ops, node.comparators, strict=False
        ):
            self.operator(left, operator, right)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Its first operator."""
        self.operator(node.values[0], node.op, node.values[1])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Not the joining of texts."""
        if not any(isinstance(part, ast.JoinedStr) for part in (node.left, node.right)):
            self.operator(node.left, node.op, node.right)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """`not x` becomes `x`."""
        if isinstance(node.op, ast.Not):
            self.change(node, f"({ast.unparse(node.operand)})")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """The other branch is taken."""
        if ast.unparse(node.test) != "TYPE_CHECKING":
            if isinstance(node.test, (ast.Name, ast.Attribute, ast.Call)):
                self.change(node.test, f"not {ast.unparse(node.test)}")
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        """None is returned."""
        if node.value and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.change(node.value, "None")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A flag, a number, or a text of one word: a key or a name."""
        if isinstance(node.value, bool):
            self.change(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self.change(node, f"({node.value!r} + 1)")
        elif isinstance(node.value, str) and node.value.isidentifier():
            self.change(node, repr(f"XX{node.value}"))

    def visit_Call(self, node: ast.Call) -> None:
        """An argument becomes None; messages stay."""
        if ast.unparse(node.func).partition(".")[0] in SILENT:
            return
        named = [keyword.value for keyword in node.keywords if keyword.arg not in SILENT]
        for argument in (*node.args, *named):
            if not isinstance(argument, ast.Constant | ast.JoinedStr | ast.Starred):
                self.change(argument, "None")
        self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> None:
        """The words of a message stay."""
        if node.arg not in SILENT:
            self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call for its effect is left out; a docstring stays."""
        if isinstance(node.value, ast.Call) and ast.unparse(node).partition(".")[0] not in SILENT:
            self.change(node, "...")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Its body: a decorator's flags, such as `frozen`, keep mistakes away that no code makes."""
        for part in node.body:
            self.visit(part)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Its defaults and its body, not its annotations."""
        for part in (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Its value alone."""
        if node.value:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """The text of a message stays."""


def run_tests(copy: Path, tests: Sequence[str]) -> None:
    """End this process with the result of some tests in a copy of the checkout."""
    os.setpgid(0, 0)  # what a hanging test started is ended with it
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy / "components")
    del os.environ[NO_PLUGINS]
    sys.path.insert(0, os.environ["PYTHONPATH"])
    sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *tests]))


def node_of(context: str, file: str) -> str:
    """The test that ran a line, from coverage's name of it; "" for another function, such as hypothesis's."""
    module, _, function = context.rpartition(".")
    return f"{file}::{function}" if module.rpartition(".")[2] == Path(file).stem else ""


class Copy:
    """A copy of the checkout, in which one change at a time is tried."""

    def __init__(self, name: str) -> None:
        self.path = COPIES / name
        shutil.rmtree(self.path, ignore_errors=True)
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=HERE, text=True)  # noqa: S607
        for file in listed.strip("\0").split("\0"):
            target = self.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if (HERE / file).exists():  # not deleted, and not committed yet
                shutil.copy2(HERE / file, target, follow_symlinks=False)
        self.product = self.path / "components" / "ddpipe"

    def pytest(self, *arguments: str, wrapped: tuple[str, ...] = (), limit: float = LIMIT_SECONDS) -> bool:
        """Whether tests pass, in this copy and in time."""
        environment = os.environ | {"PYTHONPATH": str(self.path / "components")}
        options = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments)
        running = subprocess.Popen(
            [sys.executable, *wrapped, *options],
            cwd=self.path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what a hanging test started is ended with it
        )
        try:
            return running.wait(limit) in {0, pytest.ExitCode.NO_TESTS_COLLECTED}
        except subprocess.TimeoutExpired:
            return self.report_hang(arguments, limit)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()

    def lines(self, test: str) -> tuple[float, Lines]:
        """How long a file of a package's tests takes, and which of its tests runs which lines of that."""
        package = self.product / Path(test).parts[2]  # tests/unit/PACKAGE/...
        data, settings = self.path.with_suffix(".json"), self.path.with_suffix(".ini")
        settings.write_text("[run]\ndynamic_context = test_function\n")
        files = (f"--rcfile={settings}", f"--data-file={data}.data")
        measured = ("-m", "coverage", "run", f"--source={package}", *files)
        begin = time.monotonic()
        if not self.pytest(test, "-m", "not slow", wrapped=measured):
            raise SystemExit(f"{test} fails on the code as it is")
        seconds = time.monotonic() - begin
        report = (sys.executable, "-m", "coverage", "json", "-q", "--show-contexts", *files, "-o", str(data))
        subprocess.run(report, cwd=self.path, check=True)
        found = json.loads(data.read_text())["files"]
        names = {name for lines in found.values() for run in lines["contexts"].values() for name in run}
        nodes = {name: node_of(name, test) for name in names}
        # Of a test that does not exist, pytest makes an error: every change would seem to be noticed.
        if not self.pass_quickly(["--collect-only", test, *filter(None, nodes.values())], LIMIT_SECONDS):
            raise SystemExit(f"pytest does not find all of {sorted(nodes.values())}")
        return seconds, {
            str((self.path / file).relative_to(self.product)): {
                int(line): [nodes[name] for name in run] for line, run in lines["contexts"].items()
            }
            for file, lines in found.items()
        }

    def pass_quickly(self, tests: Sequence[str], limit: float) -> bool:
        """Whether tests pass, in this copy and in time, in a process that has the large libraries."""
        running = multiprocessing.get_context("forkserver").Process(target=run_tests, args=(self.path, tests))
        running.start()
        running.join(limit)
        if running.exitcode is None and running.pid:
            os.killpg(running.pid, signal.SIGKILL)
            running.join()
            return self.report_hang(tests, limit)
        return running.exitcode in {0, pytest.ExitCode.NO_TESTS_COLLECTED}

    def report_hang(self, tests: Sequence[str], limit: float) -> bool:
        """Print which tests took too long, which counts as noticed: a busy machine may be the reason."""
        print(f"{self.path.name}: no end within {limit:.0f} s: {' '.join(tests)}", flush=True)  # noqa: T201
        return False

    def is_noticed(self, change: Change, own: Sequence[Sequence[str]], limit: float) -> bool:
        """Whether a test fails, or hangs, with a change: the package's own first, group by group."""
        file, folder = self.product / change.file, change.file.partition("/")[0]
        others = [f"tests/unit/{name}" for name in OTHERS.get(folder, "").split()]
        with_processes = [f"tests/{name}" for name in WITH_PROCESSES.get(folder, "").split()]
        source = file.read_bytes()
        file.write_bytes(change.of(source))
        try:
            if not all(self.pass_quickly(tests, limit) for tests in own if tests):
                return True
            if others and not self.pytest(*others, "-m", "not slow"):
                return True
            return bool(with_processes) and not self.pytest(*with_processes)
        finally:
            file.write_bytes(source)


def every_change(folder: str, modules: list[str]) -> list[Change]:
    """All changes of some files, or of a package."""
    product = HERE / "components" / "ddpipe"
    files = modules if all(name.endswith(".py") for name in modules) else [f"{folder}/**/*.py"]
    paths = sorted(path for file in files for path in product.glob(file))
    return [
        change
        for path in paths
        for change in Changes(str(path.relative_to(product)), path.read_bytes()).found
    ]


def measure(folder: str, modules: list[str], sample: int, seed: int, processes: int) -> None:
    """Print a folder's score, and each change that survived."""
    every = every_change(folder, modules)
    chosen = random.Random(seed).sample(every, min(sample or len(every), len(every)))
    copies = queue.SimpleQueue[Copy]()
    for number in range(processes):
        copies.put(Copy(f"{folder}-{number}"))

    def see(test: str) -> tuple[str, float, Lines]:
        copy = copies.get()
        try:
            return test, *copy.lines(test)
        finally:
            copies.put(copy)

    def notice(change: Change) -> bool:
        ran = [(test, took, lines.get(change.file, {}).get(change.line, ())) for test, took, lines in seen]
        ran = sorted((one for one in ran if one[2]), key=lambda one: one[1])  # the quickest file first
        tests = [name for _, _, names in ran for name in names if name]
        whole = [test for test, _, names in ran if "" in names]
        copy = copies.get()
        try:
            noticed = copy.is_noticed(change, (tests, whole), 60 + 5 * sum(took for _, took, _ in ran))
            if not noticed:
                shown = change.shown((copy.product / change.file).read_bytes())
                print(f"survived {len(tests)} tests: {shown}\n", flush=True)  # noqa: T201
            return noticed
        finally:
            copies.put(copy)

    tests = (HERE / "tests" / "unit" / folder).rglob("test_*.py")
    files = sorted(str(path.relative_to(HERE)) for path in tests)
    with ThreadPoolExecutor(processes) as pool:
        seen = list(pool.map(see, files))
        noticed = sum(pool.map(notice, chosen))
    low, high = binomtest(noticed, len(chosen)).proportion_ci(method="wilson")
    print(  # noqa: T201
        f"{folder}: {noticed} of {len(chosen)} changes were noticed: {noticed / len(chosen):.0%}; "
        f"of all {len(every)} {low:.0%} to {high:.0%} (95 %; seed {seed})",
        flush=True,
    )


def main() -> None:
    """Print the share of changes that the tests notice, and the changes that they do not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("modules", nargs="+", help="folders or files below components/ddpipe")
    parser.add_argument("--sample", type=int, default=0, help="as many changes of each folder; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", default=os.cpu_count(), type=int)
    given = parser.parse_args()
    forkserver.set_forkserver_preload(LARGE)
    os.environ[NO_PLUGINS] = "0"
    forkserver.ensure_running()
    del os.environ[NO_PLUGINS]
    for folder in dict.fromkeys(module.partition("/")[0] for module in given.modules):
        modules = [module for module in given.modules if module.partition("/")[0] == folder]
        measure(folder, modules, given.sample, given.seed, given.processes)


if __name__ == "__main__":
    main()
