"""The result of a run in a few lines, as `ddpipe run` prints it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ddpipe.evaluate.mistakes import worst_mistakes
from ddpipe.model.evaluation import Evaluation, load_evaluation
from ddpipe.model.training_record import how_far, training_record
from ddpipe.runs import Run

MISTAKES = 3  # that are printed; the report shows more of them, with their images


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of a run."""

    run: str
    dataset_id: str
    reused: bool  # whether the dataset version existed already
    unchanged_since: (
        str  # the earlier run whose model this one reuses, and when it ended; empty if it trained
    )
    trained: str  # how far the training got, and why it ended; empty if an earlier ddpipe trained
    # By split, by name; the test metrics with their 95 % interval, and what a constant answer has.
    metrics: Mapping[str, Mapping[str, Any]]
    warnings: Sequence[str]
    # The wrong answers of which the model was surest: `sample`, what was `expected` and `predicted`, and the
    # `probability` of the predicted class, or of the label.
    mistakes: Sequence[Mapping[str, Any]]
    data_report: str
    report: str
    model: str  # URI of the model package; empty if the gate kept the champion
    gate: Mapping[str, Any]  # decision of the gate and its reason; empty without a gate
    seconds: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def text(self) -> str:
        """The lines to print."""
        seconds = ", ".join(f"{step} {value:.1f} s" for step, value in self.seconds.items())
        width = max(map(len, self.metrics["test"]))
        scores = [f"  {name:{width}} {_with_interval(score)}" for name, score in self.metrics["test"].items()]
        unchanged = f"unchanged since run {self.unchanged_since}: its trained model is reused"
        return "\n".join(
            [
                f"run       {self.run}",
                f"dataset   {self.dataset_id[:12]} ({'reused: unchanged' if self.reused else 'new'})",
                *([unchanged] if self.unchanged_since else []),
                f"steps     {seconds}",
                *([f"trained   {self.trained}"] if self.trained else []),
                "test",
                *scores,
                *(f"note      {text}" for text in self.warnings),
                *self._mistakes(),
                f"data      {self.data_report}",
                *([f"gate      {self.gate['decision']}: {self.gate['reason']}"] if self.gate else []),
                *([f"model     {self.model}"] if self.model else []),
                f"report    {self.report}",
                *([f"predict   ddpipe predict {shlex.quote(self.model)} picture.png"] if self.model else []),
            ]
        )

    def _mistakes(self) -> list[str]:
        width = max((len(one["sample"]) for one in self.mistakes), default=0)
        lines = [
            f"  {one['sample']:{width}}  expected {one['expected']}, predicted {one['predicted']} "
            f"(probability {one['probability']:.4f})"
            for one in self.mistakes
        ]
        return ["worst mistakes" if lines else "no mistakes on the test images", *lines]


def _with_interval(score: Mapping[str, float | None]) -> str:
    interval = (
        f"   95 % interval {score['low']:.4f} to {score['high']:.4f}" if score["low"] is not None else ""
    )
    baseline = f"   constant answer {score['baseline']:.4f}" if "baseline" in score else ""
    return f"{score['value']:.4f}{interval}{baseline}"


def summary(run: Run) -> Summary:
    """The result of a finished run, read from its folder."""
    records = {record["step"]: record for record in run.steps()}
    training = training_record(run.origin("train").training)
    history = training["history"][-1]
    evaluation = load_evaluation(run.origin("evaluate").evaluation)
    scores, baseline = evaluation.metrics.scores, evaluation.metrics.baseline
    return Summary(
        run=run.uri,
        dataset_id=records["prepare"]["facts"]["dataset_id"],
        reused=records["prepare"]["facts"]["reused"],
        unchanged_since=records["train"]["facts"].get("since", ""),
        trained=how_far(training),
        metrics={
            **{
                split: {
                    name.removeprefix(f"{split}_"): value
                    for name, value in history.items()
                    if name.startswith(f"{split}_")
                }
                for split in ("train", "validation")
            },
            "test": {
                name: asdict(score) | ({"baseline": baseline[name]} if name in baseline else {})
                for name, score in scores.items()
            },
        },
        warnings=[*evaluation.metrics.warnings, *evaluation.metrics.missing()],
        mistakes=_mistakes(evaluation),
        data_report=run.data_report,
        report=run.report,
        model=run.origin("export").model if "export" in records else "",
        gate=records["gate"]["facts"] if "gate" in records else {},
        seconds={step: record["seconds"] for step, record in records.items()},
    )


def _mistakes(evaluation: Evaluation) -> list[dict[str, Any]]:
    classes = [one.name for one in evaluation.metrics.classes]
    return [
        {
            "sample": one.sample_id,
            "expected": one.true or f"no {one.said}",
            "predicted": one.said or f"no {one.true}",
            "probability": round(float(one.confidence), 6),
        }
        for one in worst_mistakes(evaluation, classes, MISTAKES)
    ]
