"""What the gate leaves behind: written by gate, read by export and the report.

<gate>/verdict.json   Verdict
<gate>/gate.json      the seal, written last
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ddpipe.data.typed import typed
from ddpipe.model.evaluation import read_json
from ddpipe.storage import Store
from ddpipe.storage.sealed import Folder, Format, to_json

FORMAT = Format("verdict of the gate", "gate.json", schema=1, maker="ddpipe gate")
VERDICT = "verdict.json"
PROMOTE, KEEP, FAIL = "promote", "keep", "fail"
FEWEST = 20  # images of a class, below which its score says too little


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPair:
    """A class's recall, or a label's AUC, under both models; None where the images define none."""

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


def publish(store: Store, verdict: Verdict) -> Folder:
    """Write a verdict into a folder of its own."""
    facts = {"model": verdict.model, "decision": verdict.decision}
    return FORMAT.publish(store, {VERDICT: to_json(asdict(verdict))}, facts)


def load_verdict(uri: str) -> Verdict:
    """The verdict at `uri`."""
    return read_json(FORMAT.open(uri), VERDICT, _verdict, FORMAT)


_FORMER = ("cost", "export")  # fields of verdicts of before, which nothing reads any more


def _verdict(values: Any) -> Verdict:  # noqa: ANN401 - JSON
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in _FORMER}
        if isinstance(compared := values.get("comparison"), dict):
            values["comparison"] = {name: value for name, value in compared.items() if name != "slices"}
    verdict = typed(Verdict, values)
    if verdict.decision not in {PROMOTE, KEEP, FAIL}:
        raise ValueError(f"{verdict.decision!r} is not a decision")
    return verdict
