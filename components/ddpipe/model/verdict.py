"""What the gate leaves behind: written by gate, read by export and the report.

<gate>/verdict.json      Verdict
<gate>/differences.npy   int64 (images, 2): index in the split, and 1 if only the new model is right, 0 if
                         only the champion is; at most 48 rows
<gate>/gate.json         the seal, written last
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpipe.data import npy
from ddpipe.data.typed import typed
from ddpipe.model.evaluation import corrupt, read_json
from ddpipe.storage import Store
from ddpipe.storage.sealed import Folder, Format, to_json

FORMAT = Format("verdict of the gate", "gate.json", schema=1, maker="ddpipe gate")
VERDICT, DIFFERENCES = "verdict.json", "differences.npy"
PROMOTE, KEEP, FAIL = "promote", "keep", "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPair:
    """A class's recall, label's AUC or slice's score under both models; None where the images define none."""

    name: str
    support: int
    candidate: float | None
    champion: float | None

    @property
    def change(self) -> float | None:
        """How much better the candidate is; None where that is not known."""
        return None if self.candidate is None or self.champion is None else self.candidate - self.champion

    @property
    def loss(self) -> float:
        """How much worse it is; nothing where that is not known."""
        return -(self.change or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Candidate and champion on the same images; `low` to `high` is the interval of the gain."""

    candidate: float
    champion: float
    low: float
    high: float
    confidence: float
    # Of McNemar's test on right and wrong answers; None where images belong together, as it takes them for
    # independent
    p_value: float | None
    both_right: int
    only_candidate: int
    only_champion: int
    both_wrong: int
    classes: tuple[ClassPair, ...]
    slices: tuple[ClassPair, ...] = ()

    @property
    def gain(self) -> float:
        """How much better the candidate is."""
        return self.candidate - self.champion

    @property
    def samples(self) -> int:
        """Images that were compared."""
        return self.both_right + self.only_candidate + self.only_champion + self.both_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the gate decided."""

    model: str
    decision: str
    reason: str
    metric: str
    score: float | None  # of the new model; None if the images do not define it
    champion: str = ""  # version of the champion that it was compared with; empty if there is none
    comparison: Comparison | None = None  # with the champion; None without one
    excluded: int = 0  # images left out because either model was trained on them
    # Which of the models does not say what it was trained on, in a clause; empty if both do
    unknown: str = ""
    source: str = ""

    @property
    def promoted(self) -> bool:
        """Whether the new model is exported and becomes the champion."""
        return self.decision == PROMOTE


def publish(store: Store, verdict: Verdict, differences: npt.NDArray[np.int64]) -> Folder:
    """Write a verdict into a folder of its own; `differences`, shape (images, 2), as in differences.npy."""
    files = {VERDICT: to_json(asdict(verdict)), DIFFERENCES: npy.to_bytes(differences)}
    return FORMAT.publish(store, files, facts={"model": verdict.model, "decision": verdict.decision})


def load_verdict(uri: str) -> tuple[Verdict, npt.NDArray[np.int64]]:
    """The verdict at `uri`, and the images on which the models differ, shape (images, 2)."""
    folder = FORMAT.open(uri)
    verdict = read_json(folder, VERDICT, _verdict, FORMAT)
    try:
        differences = npy.array_in(folder.read(DIFFERENCES))
    except ValueError as error:
        raise corrupt(folder, DIFFERENCES, str(error), FORMAT) from error
    if differences.dtype != np.int64 or differences.ndim != 2 or differences.shape[1] != 2:  # noqa: PLR2004
        raise corrupt(folder, DIFFERENCES, f"it is {differences.dtype} {differences.shape}", FORMAT)
    return verdict, differences


_FORMER = ("cost", "export")  # fields of verdicts of before, which nothing reads any more


def _verdict(values: Any) -> Verdict:  # noqa: ANN401 - JSON
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in _FORMER}
    verdict = typed(Verdict, values)
    if verdict.decision not in {PROMOTE, KEEP, FAIL}:
        raise ValueError(f"{verdict.decision!r} is not a decision")
    return verdict
