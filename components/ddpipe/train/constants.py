"""The numbers that tune training: each with its reason. None is an option: they hold for all data.

They were measured with benchmarks/bench_defaults.py and bench_training.py on two cores and on one GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What is chosen for a recipe: auto.py

# Validation images from which the best epoch is selected: with fewer, chance decides which one is best
SELECTION_IMAGES = 400
IMBALANCE = 5  # from this ratio of the largest class to the smallest on, classes are weighted
# Smaller batches leave processors idle; larger ones take too few steps
SMALLEST_BATCH, LARGEST_BATCH = 16, 512
STEPS_OF_A_PASS = 32  # the batch is so small that an epoch has about so many steps
# Working resolutions of photographs by device: small sets learn nothing from more detail
SIDES = {"cpu": 64, "cuda": 128}
PRETRAINED_SIDES = {"cpu": 128, "cuda": 224}  # pretrained weights know what larger images look like
ENOUGH_PHOTOGRAPHS = 20_000  # from more of them, random weights learn nearly as much as pretrained ones
USUAL_NETWORK = "resnet18"  # the smallest common network with pretrained weights
LENET_SIDE = 32  # gray images of at most so many pixels get LeNet: they are digits, or as simple
FAST_CNN_SIDE = 16  # pixels that fast-cnn needs: three halvings leave at least one
PRETRAINED_RATE = 0.5  # share of the rate from scratch: more would destroy what the weights know
FEWEST_WARMUP_STEPS = 20  # fewer steps are no warm-up: momentum has not settled

# Passes over so many images; more over fewer images, by a power of the ratio
USUAL_PASSES, USUAL_IMAGES, PASSES_POWER = 30, 2400, 0.31
# Further passes over a small set cost time and gain nothing, unless it has fewer than `FEWEST_STEPS`
MOST_PASSES = 40
FEWEST_STEPS = 100  # of a training, however few images there are: fewer do not reach the peak rate
MANY_IMAGES = 1500  # from so many on, the wide fast-cnn is worth three times the time of the narrow one
WIDE_SECONDS = 2e-6  # seconds for a pixel in the wide fast-cnn on two cores
FEWEST_WIDE_PASSES = 3  # with fewer passes, the narrow fast-cnn learns more than the wide one
# Fewer than `MANY_IMAGES` are trained within so many seconds on two cores, but with so many passes
SOON_SECONDS, FEWEST_SOON_PASSES = 60, 20
# Over all epochs, if that is more than `FEWEST_EPOCHS`: more images teach more than more passes
MOST_IMAGES_SEEN = 2_000_000
FEWEST_EPOCHS = 3  # however large the set: the average and the schedule need several
PRETRAINED_PASSES = {"cpu": 5, "cuda": 15}  # passes at most: pretrained weights learn new classes in a few

# What suits which networks, where nothing else is given: auto.py

# Weight decay by optimizer: Muon keeps weights at one length and needs none
DECAYS = {"sgd": 5e-4, "adamw": 0.02, "muon": 0.0}
# By optimizer: Muon's updates are all as long, and a long memory makes them lag
MOMENTA = {"sgd": 0.9, "adamw": 0.9, "muon": 0.6}
# Share of all steps by optimizer: Muon's first updates are as well scaled as its later ones
WARMUPS = {"sgd": 0.1, "adamw": 0.1, "muon": 0.0}


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that train alike, from random weights."""

    optimizer: str
    rates: Mapping[str, float]  # peak learning rate by optimizer, for batches of `batch`
    batch: int = 64
    # By which the rate follows the size of the batch: 1 in proportion, 0.5 its square root
    power: float = 1.0
    smoothing: float = 0.1
    grows: bool = False  # whether early steps may use smaller images

    def values(self, optimizer: str, *, smooths: bool) -> dict[str, Any]:
        """What goes with an optimizer in a recipe, by the names of the hyperparameters."""
        return {
            "schedule": "linear" if optimizer == "muon" else "cosine",
            "momentum": MOMENTA[optimizer],
            "weight_decay": DECAYS[optimizer],
            "label_smoothing": self.smoothing if smooths else 0.0,
        }


FAST = Family(
    "muon", {"muon": 0.15, "sgd": 0.05, "adamw": 2e-3}, batch=512, power=0.5, smoothing=0.2, grows=True
)
NORMALIZED = Family("sgd", {"sgd": 0.1, "adamw": 2e-3, "muon": 0.05}, smoothing=0.0)
UNNORMALIZED = Family("sgd", {"sgd": 0.03, "adamw": 1e-3, "muon": 0.02}, smoothing=0.0)
RESIDUAL = Family("sgd", {"sgd": 0.02, "adamw": 1e-3, "muon": 0.02})
PLAIN_DEEP = Family("sgd", {"sgd": 0.005, "adamw": 2e-4, "muon": 0.01})
ATTENTION = Family("adamw", {"sgd": 0.01, "adamw": 5e-4, "muon": 0.02}, power=0.5)

FAMILIES: Mapping[str, Family] = {
    "digits-cnn": NORMALIZED,
    "lenet": UNNORMALIZED,
    "simple-cnn": UNNORMALIZED,
    "fast-cnn": FAST,
    **dict.fromkeys(("alexnet", "squeezenet", "vgg"), PLAIN_DEEP),
    **dict.fromkeys(("vit", "swin", "maxvit", "convnext"), ATTENTION),
}
"""By the beginning of a network's name; the others train like residual networks."""

# Progressive resizing: batches.py

# Share of all steps after which images have their full size: the later half learns detail
FULL_RESOLUTION_FROM = 0.5
SIDE_MULTIPLE = 4  # pixels that the sides of smaller images are a multiple of, so that pooling loses none

# Start and divergence: initial.py and loop.py

# Training images from which a network may set its first weights: enough for their covariance
INITIAL_SAMPLES = 1024
# Steps between two checks of the loss: a check waits for the device and for the other ranks
LOSS_CHECK_EVERY = 16
COMPILED_DEVICES = ("cuda",)  # devices for which `compile` counts: on a CPU it takes minutes and gains little
# Samples of a batch whose loss is not a number that the message names; diverged.json has all
SAMPLES_NAMED = 5
# Images that are validated at a time, at most: without gradients they need little memory
VALIDATION_BATCH = 512

# How many steps fit into a budget of minutes: timetable.py

# Work of scoring an image: the forward pass alone, of three passes of about the same size
SCORING_WORK = 1 / 3
STEPS_BEFORE_FIRST_DECISION = 4  # the first step of a process is not counted: it prepares kernels
# A decision counts until one such part of the remaining steps is done: a shared machine changes its pace
DECISION_PART = 20
# Share of a budget that is planned for: a machine that becomes slow at the end is noticed a little late
BUDGET_PART = 0.985
# Times by which the pace is measured, and by what the steps between them grow: the last quarter decides
TIMES_KEPT, MARKS_GROW_BY = 64, 1.05
# No time left is shown before so many steps, nor while the pace changes by so much, nor before that part of
# it has been measured, at least and at most so many seconds
ESTIMATE_STEPS, ESTIMATE_RATIO, ESTIMATE_PART, ESTIMATE_SECONDS = 16, 1.25, 20, (3.0, 60.0)
# More than both of them improves no model: a longer budget is not used up
MOST_EPOCHS, MOST_STEPS = 200, 2000
# Time that evaluation and export need beside scoring, in times that a training process needs to start
LAUNCHES_LATER = 4.0

# How many processes train: paces.py

# To try a number costs two launches: a tenth of the time left, at most, when it is `LAUNCHES_WORTH` of them
LAUNCHES_WORTH = 20
PACE_GAIN = 1.05  # more processes have to be faster by so much: each holds the model once more

# Ranks and memory: fully_sharded.py and journal.py

LARGE_TENSOR = 2**16  # values from which on a rank does not hold a tensor of which it needs a share only
# Weights from which on a block is sharded by itself: smaller ones cost more in messages than in memory
SMALLEST_UNIT = 2**18
# Ranks wait for each other so many times the slowest of recent steps, at least so many seconds
PATIENCE_STEPS, LEAST_PATIENCE, PATIENCE_RATIO = 16, 60.0, 20
# Ranks ask each other every so many seconds whether to save or to stop, and after at most so many steps
POLL_SECONDS, MOST_UNPOLLED = 0.25, 15
# How often the progress is written to the store, and into a log in which no epoch ends meanwhile
REPORT_SECONDS, LINE_SECONDS = 30.0, 60.0

# Writes to the store: saver.py

STORE_PATIENCE = 600.0  # seconds for which a store may be away: as long as the API server may
RETRY_PAUSE = 5.0  # seconds between two tries
# Seconds in which a training that fails may still write what waits: less than a pod gets to terminate
LAST_WRITES = 20.0
