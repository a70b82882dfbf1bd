"""Training beside the loops that one would write instead, and what the loop itself costs.

    DDPIPE_IMAGES=cifar10.tar.gz [DDPIPE_BENCH_PYTHON=...] python tests/bench/bench_training.py [--quick]

Writes tests/bench/results/training.md. $DDPIPE_IMAGES is an archive of train/<class>/*.jpg and
test/<class>/*.jpg, 32 by 32 pixels. $DDPIPE_BENCH_PYTHON is the python of an environment with torch,
torchvision, accelerate and lightning; without it the last two are left out. All use the same CPUs and take
turns of a few seconds, and the accuracy is always that on all of test/. `--quick` shows that it works, on a
few images.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from photographs import table
from turns import Program, run_in_turns

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "training.md"
CPUS = len(os.sched_getaffinity(0))
DOCUMENTS = {"model": "simple-cnn", "learning_rate": 0.01, "weight_decay": 0.0, "warmup_fraction": 0.0}
FAST = {
    "model": "fast-cnn-small",
    "batch_size": 500,
    "learning_rate": 0.15,
    "momentum": 0.6,
    "optimizer": "muon",
    "schedule": "linear",
    "warmup_fraction": 0.0,
    "label_smoothing": 0.2,
    "augmentation": "shift-alternating-flip",
}
LABELS = ("image", "label", "split")
STEPS_OF_A_ROUND = 16


@dataclass(frozen=True)
class Data:
    """The images.

    Attributes:
        folder: As files: train/<class>/, test/<class>/.
        manifest: As a dataset version whose validation split is all of test/.
        prepared: Seconds that its preparation took.
        images: In train/.
        epochs: Of the documents' loop.
    """

    folder: Path
    manifest: str
    prepared: float
    images: int
    epochs: int


def the_data(archive: Path, work: Path, *, quick: bool) -> Data:
    """Unpack the archive, all of it or a few images of each class, and prepare it."""
    folder = work / "images"
    most = {"train": 100, "test": 20} if quick else {"train": sys.maxsize, "test": sys.maxsize}
    rows: list[tuple[str, str, str]] = []
    seen: Counter[str] = Counter()
    with tarfile.open(archive) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            split, label, _ = member.name.split("/")[-3:]
            seen[f"{split}/{label}"] += 1
            if seen[f"{split}/{label}"] <= most[split]:
                rows.append((member.name, label, split))
                tar.extract(member, folder, filter="data")
    with (folder / "labels.csv").open("w", newline="") as file:
        named = [(name, label, "train" if split == "train" else "validation") for name, label, split in rows]
        csv.writer(file).writerows([LABELS, *named])
    began = time.monotonic()
    options = ("--source=csv", f"--source-path={folder}", "--table=labels.csv", f"--store={work / 'store'}")
    columns = ("--image-column=image", "--label-columns=label", "--split-column=split")
    command = [sys.executable, "-m", "ddpipe", "prepare", *options, *columns, "--json"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    images = sum(split == "train" for *_, split in rows)
    return Data(
        folder, json.loads(told)["dataset"], time.monotonic() - began, images, epochs=1 if quick else 10
    )


def torchrun(python: str, processes: int) -> list[str]:
    """The start of a command line."""
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


def threads(processes: int) -> dict[str, str]:
    """An environment in which the processes share the CPUs."""
    return {"OMP_NUM_THREADS": str(max(1, CPUS // processes))}


def ours(
    name: str, data: Data, work: Path, recipe: dict[str, object], processes: int = 2, cpus: str = ""
) -> Program:
    """A training by ddpipe."""
    slug = name.replace(" ", "-").replace(",", "")
    arguments = ["--dataset", data.manifest, "--output", str(work / slug), "--recipe", json.dumps(recipe)]
    pinned = ["taskset", "-c", cpus] if cpus else []
    command = [*pinned, *torchrun(sys.executable, processes), "-m", "ddpipe.train", *arguments]
    return Program(name, command, threads(processes), work / f"{slug}.log")


def others(data: Data, work: Path) -> Iterator[tuple[Program, Path]]:
    """The loops of tests/bench/loops, and the file that a user would have written."""
    given = [str(data.folder), str(data.epochs)]
    for name, file, processes in (
        ("the documents' loop", "documents.py", 1),
        ("a plain DDP loop", "plain_ddp.py", 2),
        ("Hugging Face Accelerate", "with_accelerate.py", 2),
        ("Lightning", "with_lightning.py", 2),
    ):
        python = os.environ.get("DDPIPE_BENCH_PYTHON", sys.executable)
        if file.startswith("with_") and "DDPIPE_BENCH_PYTHON" not in os.environ:
            continue
        # Lightning starts its other processes by itself.
        start = [python] if processes == 1 or name == "Lightning" else torchrun(python, processes)
        script = HERE / "loops" / file
        log = work / f"{file}.log"
        yield Program(name, [*start, str(script), *given], threads(processes), log), script


def lines_of_code(script: Path) -> int:
    """Lines that are no comment, no docstring and not blank."""
    text = script.read_text().split('"""', 2)[2]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())


def compared(data: Data, work: Path, *, quick: bool) -> str:
    """Time to accuracy, beside the others."""
    written = {program.name: (program, lines_of_code(script)) for program, script in others(data, work)}
    documents = written["the documents' loop"][0]
    epochs = {"epochs": data.epochs}
    mine = [
        ours("ddpipe, the documents' network", data, work, DOCUMENTS | epochs),
        ours("ddpipe, fast-cnn-small", data, work, FAST | {"epochs": 1 if quick else 8}),
    ]
    programs = [*(program for program, _ in written.values()), *mine]
    run_in_turns(programs)
    goal = documents.best
    rows = []
    for program in programs:
        reached = program.seconds_to(goal)
        lines = written[program.name][1] if program.name in written else 1
        ratio = f"{reached / (documents.seconds_to(goal) or 1):.2f}" if reached else "-"
        rows.append(
            (
                program.name,
                f"{reached:.0f}" if reached else "never",
                ratio,
                f"{program.best:.3f}",
                f"{rate(program, data.images):,.0f}",
                f"{program.memory / 2**20:,.0f}",
                lines,
            )
        )
    title = f"Seconds to the best accuracy of the documents' loop, {goal:.3f}, on {CPUS} CPUs"
    columns = ("what", "seconds", "ratio", "best accuracy", "images/s", "peak memory MB", "lines of code")
    return table(title, columns, rows) + f"\nPreparing the dataset once took {data.prepared:.0f} s.\n"


def rate(program: Program, images: int) -> float:
    """Training images in a second, with validation; without the first epoch, which has the start in it."""
    times = [seconds for seconds, _ in program.scores]
    began, epochs = (times[0], len(times) - 1) if len(times) > 1 else (0.0, 1)
    return epochs * images / (times[-1] - began)


def scaling(data: Data, work: Path, *, quick: bool) -> str:
    """Two processes on two CPUs beside one on one CPU, each with the same share of a step."""
    recipe = DOCUMENTS | {"epochs": 2 if quick else 4, "batch_size": 256}
    first = str(min(os.sched_getaffinity(0)))
    one = ours("one process, one CPU", data, work, recipe, processes=1, cpus=first)
    one.environment = {"OMP_NUM_THREADS": "1"}
    two = ours("two processes, two CPUs", data, work, recipe | {"batch_size": 512})
    two.environment = {"OMP_NUM_THREADS": "1"}
    run_in_turns([one, two])
    rates = {program.name: rate(program, data.images) for program in (one, two)}
    rows = [(name, f"{found:,.0f}", f"{found / rates[one.name]:.2f}") for name, found in rates.items()]
    return table("More processes", ("what", "images/s", "ratio"), rows)


def own_cost(data: Data, *, quick: bool) -> str:
    """All of a step but forward, backward and optimizer, as a share of it; blocks of steps take turns."""
    rows = [
        (name, f"{seconds * 1000:.1f}", f"{share:.1%}")
        for name, recipe in {"simple-cnn, batch 64": DOCUMENTS, "fast-cnn-small, batch 500": FAST}.items()
        for seconds, share in [overhead(data.manifest, recipe, rounds=3 if quick else 15)]
    ]
    return table("The loop's own cost", ("what", "CPU milliseconds per step", "of it the loop's own"), rows)


def overhead(manifest: str, values: dict[str, object], rounds: int) -> tuple[float, float]:
    """CPU seconds of a step, and the share of them that a bare step on a batch in memory does without."""
    import torch  # noqa: PLC0415 - the other parts start programs of their own

    from ddpipe.data.manifest import load_manifest  # noqa: PLC0415
    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.distributed import World  # noqa: PLC0415
    from ddpipe.storage import open_store  # noqa: PLC0415
    from ddpipe.train.loop import Trainer  # noqa: PLC0415
    from ddpipe.train.optimizer import set_learning_rate  # noqa: PLC0415
    from ddpipe.train.recipe import Recipe  # noqa: PLC0415
    from ddpipe.train.stop import Watch  # noqa: PLC0415

    torch.set_num_threads(1)  # waiting threads burn time
    recipe = Recipe.from_dict(values | {"epochs": 1000})
    splits = {name: open_split(manifest, name) for name in ("train", "validation")}
    world = World(0, 1, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(recipe, load_manifest(manifest), splits, open_store(folder), world, saver=None)
    watch, step = Watch(60), trainer._training_step
    whole: list[float] = []
    bare: list[float] = []
    for epoch in range(rounds):
        batches = trainer._batches(epoch, 0)
        kept = next(batches)
        # One step of each in turn: a slow moment falls on both.
        for number in range(STEPS_OF_A_ROUND):
            began = time.process_time()
            trainer._heed(watch)
            trainer._take(number, next(batches))
            middle = time.process_time()
            set_learning_rate(step.optimizer, recipe.learning_rate)
            step.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=trainer._bf16):
                logits = step.strategy.model(kept.images)
            trainer._objective.losses(logits.float(), kept.labels).mean().backward()
            step.optimizer.step()
            whole.append(middle - began)
            bare.append(time.process_time() - middle)
    return statistics.median(whole), 1 - statistics.median(bare) / statistics.median(whole)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("compared", "scaling", "own_cost"))
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs end with this one
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        data = the_data(Path(os.environ["DDPIPE_IMAGES"]), work, quick=given.quick)
        parts = {
            "compared": lambda: compared(data, work, quick=given.quick),
            "scaling": lambda: scaling(data, work, quick=given.quick),
            "own_cost": lambda: own_cost(data, quick=given.quick),
        }
        chosen = [given.only] if given.only else list(parts)
        text = "# Training\n\n" + "\n".join(parts[name]() for name in chosen)
    if not given.quick and not given.only:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(text)
    print(text)  # noqa: T201


if __name__ == "__main__":
    main()
