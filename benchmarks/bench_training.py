"""Training, compared with other training loops, and the overhead of the loop itself.

    DDPIPE_IMAGES=cifar10.tar.gz [DDPIPE_BENCH_PYTHON=...] python benchmarks/bench_training.py

Writes benchmarks/results/training.md. $DDPIPE_IMAGES is an archive of train/<class>/*.jpg and
test/<class>/*.jpg, 32 by 32 pixels. $DDPIPE_BENCH_PYTHON is the python of an environment with torch,
torchvision, accelerate and lightning; without it the last two are skipped. All use the same CPUs and take
turns of a few seconds; accuracy is measured on all of test/. `--quick` is a trial run on a few images.
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

from apart import WARMING_UP, shares
from photographs import table
from turns import Program, run_in_turns

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "training.md"
CPUS = len(os.sched_getaffinity(0))
LABELS = ("image", "label", "split")
STEPS_OF_A_ROUND = 16
WAYS_MEAN = """\
Together: both train one model, by ddp. Apart: a model each. Meeting: apart, but both wait for each other at
each step. Images per second are those of the slower process, twice, as a share of what both train apart;
medians of blocks of steps in turn, in the same two processes."""


@dataclass(frozen=True)
class Data:
    """The images.

    Attributes:
        folder: As files: train/<class>/, test/<class>/.
        manifest: As a dataset version whose validation split is all of test/.
        prepared: Seconds that its preparation took.
        images: In train/.
        epochs: Of the documents' loop, and of all that do the same.
    """

    folder: Path
    manifest: str
    prepared: float
    images: int
    epochs: int


def the_data(archive: Path, work: Path, epochs: int, *, quick: bool) -> Data:
    """Unpack the archive, all of it or a few images of each class, and prepare it.

    One training image of each class is the dataset's test split, which nobody looks at.
    """
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
        # Without a test split, prepare would take one of a tenth of the images from train.
        first_of_each = {
            label: place for place, (_, label, split) in reversed([*enumerate(named)]) if split == "train"
        }
        for place in first_of_each.values():
            named[place] = (*named[place][:2], "test")
        csv.writer(file).writerows([LABELS, *named])
    began = time.monotonic()
    options = ("--source=csv", f"--source-path={folder}", "--table=labels.csv", f"--store={work / 'store'}")
    columns = ("--image-column=image", "--label-columns=label", "--split-column=split")
    command = [sys.executable, "-m", "ddpipe", "prepare", *options, *columns, "--json"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    images = sum(split == "train" for *_, split in rows)
    return Data(
        folder, json.loads(output)["dataset"], time.monotonic() - began, images, epochs=1 if quick else epochs
    )


def recipe_named(name: str) -> dict[str, object]:
    """The values of a recipe by its name."""
    from named_recipes import RECIPES  # noqa: PLC0415 - the package is the benchmarked one

    return dict(RECIPES[name])


def torchrun(python: str, processes: int) -> list[str]:
    """The start of a command line."""
    return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


def threads(processes: int) -> dict[str, str]:
    """An environment in which the processes share the CPUs."""
    return {"OMP_NUM_THREADS": str(max(1, CPUS // processes))}


def slug(name: str) -> str:
    """The name as a file's."""
    return name.replace(" ", "-").replace(",", "")


def ours(name: str, data: Data, work: Path, recipe: dict[str, object], processes: int = 2) -> Program:
    """A training by ddpipe."""
    arguments = [
        "--dataset",
        data.manifest,
        "--output",
        str(work / slug(name)),
        "--recipe",
        json.dumps(recipe),
    ]
    command = [*torchrun(sys.executable, processes), "-m", "ddpipe.train", *arguments]
    return Program(name, command, threads(processes), work / f"{slug(name)}.log")


def others(data: Data, work: Path) -> Iterator[tuple[Program, Path]]:
    """The loops of benchmarks/loops, and the file that a user would have written."""
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


def compared(data: Data, work: Path, recipes: Sequence[str], *, quick: bool) -> str:
    """Time to accuracy, next to the others."""
    written = {program.name: (program, lines_of_code(script)) for program, script in others(data, work)}
    documents = written["the documents' loop"][0]
    fixed = {"documents": {"epochs": data.epochs}}
    mine = [
        ours(
            f"ddpipe, recipe {name}",
            data,
            work,
            recipe_named(name) | ({"epochs": 1} if quick else fixed.get(name, {})),
        )
        for name in recipes
    ]
    programs = [*(program for program, _ in written.values()), *mine]
    run_in_turns(programs)
    goal, whole = documents.best, documents.scores[-1][0]
    rows = []
    for program in programs:
        reached, ended = program.seconds_to(goal), program.scores[-1][0]
        lines = written[program.name][1] if program.name in written else 1
        more = () if program.name in written else ("flips", "flips-and-shifts")
        averaged = [f"{of_views(data, work / slug(program.name), views):.3f}" for views in more] or ["-", "-"]
        rows.append(
            (
                program.name,
                f"{reached:.0f}" if reached else "never",
                f"{reached / whole:.2f} T" if reached else "-",
                f"{ended:.0f}",
                f"{ended / whole:.2f} T",
                f"{program.best:.3f}",
                *averaged,
                f"{rate(program, data.images):,.0f}",
                f"{program.memory / 2**20:,.0f}",
                lines,
            )
        )
    title = (
        f"Training next to other loops on {CPUS} CPUs; "
        f"T is the time of {data.epochs} epochs of the documents' loop, {goal:.3f} their best accuracy"
    )
    columns = (
        "what",
        f"seconds to {goal:.3f}",
        "",
        "seconds in all",
        "",
        "best accuracy",
        "of the end, with flips",
        "with shifts, too",
        "images/s",
        "peak memory MB",
        "lines of code",
    )
    return table(title, columns, rows) + f"\nPreparing the dataset once took {data.prepared:.0f} s.\n"


def of_views(data: Data, output: Path, views: str) -> float:
    """The accuracy of a finished training's model with several views of each image."""
    import torch  # noqa: PLC0415 - the other parts start programs of their own

    from ddpipe.data.reader import open_split  # noqa: PLC0415
    from ddpipe.model.checkpoint import newest  # noqa: PLC0415
    from ddpipe.model.classifier import classifier_of  # noqa: PLC0415
    from ddpipe.model.scoring import with_views  # noqa: PLC0415
    from ddpipe.storage import open_store  # noqa: PLC0415

    found, split = newest(open_store(str(output))), open_split(data.manifest, "validation")
    assert found
    model = with_views(classifier_of(found[1]), views).eval()
    right = 0
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        for first in range(0, len(split), 500):
            chosen = range(first, min(first + 500, len(split)))
            answers = model(torch.from_numpy(split.images(chosen))).argmax(1)
            right += int((answers.numpy() == split.labels[first : first + 500]).sum())
    return right / len(split)


def rate(program: Program, images: int) -> float:
    """Training images in a second, with validation; without the first epoch, which has the start in it.

    Args:
        program: What ran.
        images: In an epoch.
    """
    times = [seconds for seconds, _ in program.scores]
    began, epochs = (times[0], len(times) - 1) if len(times) > 1 else (0.0, 1)
    return epochs * images / (times[-1] - began)


def scaling(data: Data, *, quick: bool) -> str:
    """Two processes that train one model, next to the same two with a model each."""
    rows = []
    for images, block in ((32, 4),) if quick else ((256, 4), (32, 24)):
        rounds = min(20, (data.images // (2 * images) - WARMING_UP) // block)
        found = shares(data.manifest, recipe_named("documents"), images=images, rounds=rounds, block=block)
        rows += [
            (images, way, f"{one.milliseconds:.1f}", f"{one.images:.1%}", f"{one.processor:.3f}")
            for way, one in found.items()
        ]
    columns = ("images of a step, per process", "what", "ms per step", "images/s", "processor time")
    return table("Two processes", columns, rows) + f"\n{WAYS_MEAN}\n"


def own_cost(data: Data, *, quick: bool) -> str:
    """All of a step but forward, backward and optimizer, as a share of it; blocks of steps take turns."""
    rows = [
        (name, f"{seconds * 1000:.1f}", f"{share:.1%}")
        for name, rounds in {"documents": 40, "quick-32": 4}.items()
        # At full size: the bare step does not shrink images.
        for recipe in [recipe_named(name) | {"initial_resolution": 1.0}]
        for seconds, share in [overhead(data.manifest, recipe, rounds=2 if quick else rounds)]
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
    from ddpipe.train.timetable import Watch  # noqa: PLC0415

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
        for number in range(min(STEPS_OF_A_ROUND, trainer._steps_per_epoch - 1)):
            began = time.process_time()
            trainer.poll(watch)
            trainer.take(number, next(batches))
            middle = time.process_time()
            set_learning_rate(step.optimizer, recipe.learning_rate)
            step.optimizer.zero_grad()
            with step.autocast():
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
    parser.add_argument("--epochs", type=int, default=10, help="of the documents' recipe")
    parser.add_argument("--recipes", nargs="+", default=["documents", "quick-32", "fast-32"])
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs end with this one
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        data = the_data(Path(os.environ["DDPIPE_IMAGES"]), work, given.epochs, quick=given.quick)
        parts = {
            "compared": lambda: compared(data, work, given.recipes, quick=given.quick),
            "scaling": lambda: scaling(data, quick=given.quick),
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
