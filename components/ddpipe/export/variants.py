"""Further formats of an exported model: smaller numbers in ONNX, and a program for PyTorch.

Each is computed from the model that was proven to agree with the evaluation, then answers the whole test
split itself. It is published only if its score loses no more than allowed, with what was measured.
"""

from __future__ import annotations

import io
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import nn

from ddpipe.data.reader import SplitReader
from ddpipe.errors import DdpipeError
from ddpipe.export.spec import FP16, INT8, PROGRAM
from ddpipe.model.evaluation import Evaluation
from ddpipe.model.onnx import NotExportable
from ddpipe.model.package import INPUT
from ddpipe.model.scoring import Answer, answers_to, logits_by
from ddpipe.model.session import Session
from ddpipe.model.tasks import TASKS
from ddpipe.model.tensors import first_line

FILES = {FP16: "model.fp16.onnx", INT8: "model.int8.onnx", PROGRAM: "model.pt2"}

CALIBRATED, BATCH = 256, 32
"""Training images by which the ranges of int8 are chosen, and how many at once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A further format.

    Attributes:
        name: As it is asked for.
        data: The file.
        facts: What was measured, for the lineage: `file`, `megabytes`, `score`, `loss`,
            `largest_probability_difference` and `same_decisions` over all test `samples`; `left_out`, the
            reason, if it is not published.
    """

    name: str
    data: bytes
    facts: dict[str, Any]

    @property
    def is_published(self) -> bool:
        """Whether it is accurate enough."""
        return not self.facts.get("left_out")


def variants(
    names: Sequence[str],
    model: bytes | None,
    evaluated: nn.Module,
    samples: SplitReader,
    training: SplitReader,
    evaluation: Evaluation,
    most_loss: float,
) -> list[Variant]:
    """Make formats, and measure each on the whole split."""
    found = []
    for name in dict.fromkeys(names):
        try:
            data, facts = _tried(name, model, evaluated, samples, training, evaluation)
        except NotExportable as problem:
            _log.warning("there is no %s: %s", name, problem)
            found.append(Variant(name=name, data=b"", facts={"left_out": str(problem)}))
            continue
        if facts["loss"] > most_loss:
            facts["left_out"] = f"it loses {facts['loss']:.4f}, more than the {most_loss:g} that are allowed"
            _log.warning("%s is left out: %s", name, facts["left_out"])
        else:
            facts["file"] = FILES[name]
        facts["megabytes"] = round(len(data) / 1e6, 3)
        found.append(Variant(name=name, data=data, facts=facts))
    return found


def _tried(
    name: str,
    model: bytes | None,
    evaluated: nn.Module,
    samples: SplitReader,
    training: SplitReader,
    evaluation: Evaluation,
) -> tuple[bytes, dict[str, Any]]:
    """A format as a file, and what was measured; NotExportable if it cannot be made or run."""
    try:
        data, answer = _made(name, model, evaluated, training)
        return data, measured(answer, samples, evaluation)
    except (NotExportable, DdpipeError):
        raise
    except Exception as error:  # converters and runtimes raise anything for a graph that they do not know
        raise NotExportable(f"{type(error).__name__}: {first_line(error)}") from error


def _made(
    name: str, model: bytes | None, evaluated: nn.Module, training: SplitReader
) -> tuple[bytes, Answer]:
    """A format as a file, and what computes with it."""
    if model is None and name != PROGRAM:
        raise NotExportable("ONNX cannot express this network")
    if model is None or name == PROGRAM:
        return _program(evaluated, training.shape)
    data = _halved(model) if name == FP16 else _quantized(model, training)
    return data, Session(data, torch.get_num_threads())


def _halved(model: bytes) -> bytes:
    """All weights and arithmetic in float16; the logits stay float32."""
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - rarely needed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of weights that become subnormal: the answers are measured below
        found = convert_float_to_float16(onnx.load_model_from_string(model), keep_io_types=True)
    return bytes(found.SerializeToString(deterministic=True))


def _quantized(model: bytes, training: SplitReader) -> bytes:
    """Weights and activations in 8 bits, with ranges from training images."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static  # noqa: PLC0415

    class Images(CalibrationDataReader):  # type: ignore[misc]  # has no types
        """Batches of training images."""

        def __init__(self) -> None:
            self.batches = spread_over(training, CALIBRATED)

        def get_next(self) -> dict[str, npt.NDArray[np.uint8]] | None:
            images = next(self.batches, None)
            return None if images is None else {INPUT: images}

    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        before.write_bytes(model)
        quantize_static(
            before,
            after,
            Images(),
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return after.read_bytes()


def _program(evaluated: nn.Module, shape: tuple[int, int, int]) -> tuple[bytes, Answer]:
    """The graph that torch.export traces, with its weights."""
    # Two images: torch.export takes a batch of one for a constant.
    example = torch.zeros((2, *shape), dtype=torch.uint8)
    program = torch.export.export(
        evaluated, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    file = io.BytesIO()
    torch.export.save(program, file)
    return file.getvalue(), logits_by(program.module())


def measured(answer: Answer, samples: SplitReader, evaluation: Evaluation) -> dict[str, Any]:
    """How far a format's answers to a split are from the evaluated ones."""
    metrics, (logits, labels) = evaluation.metrics, evaluation.predictions()
    task, scale = TASKS[metrics.task], np.float32(metrics.temperature)
    found = answers_to(samples, answer, BATCH)
    if not np.isfinite(found).all():
        raise NotExportable("it outputs NaN or infinity")
    truth = task.truth(labels, logits.shape[1])
    before, now = (task.probabilities(one / scale) for one in (logits, found))
    same = task.decisions(before, metrics.thresholds) == task.decisions(now, metrics.thresholds)
    score = task.headline(found, truth)
    if not math.isfinite(score):
        raise NotExportable(f"its loss cannot be measured: these images define no {task.scores[0]}")
    return {
        "samples": len(found),
        "score": score,
        "loss": task.headline(logits, truth) - score,
        "largest_probability_difference": float(np.abs(now - before).max()),
        "same_decisions": int(same.all(axis=1).sum()),
    }


def spread_over(samples: SplitReader, most: int) -> Iterator[npt.NDArray[np.uint8]]:
    """Pixels of at most so many samples, spread evenly over a split: batches of shape (n, H, W, C)."""
    indices = np.unique(np.linspace(0, len(samples) - 1, min(most, len(samples))).round().astype(np.int64))
    return (samples.images(indices[start : start + BATCH]) for start in range(0, len(indices), BATCH))
