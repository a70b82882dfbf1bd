"""An ONNX model of a package -> logits, without torch. The model is not trusted: it is data, and a graph.

A graph can name files that hold its weights; ours hold all of them, so a model that names one is rejected.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import onnxruntime

from ddpipe.model.package import INPUT, OUTPUT, Signature
from ddpipe.processes.machine import cpus

NOWHERE = f"{os.devnull}/nowhere"
"""A folder that cannot exist: where weights in files of their own are looked for."""

QUIET = 4
"""onnxruntime's level of logging for what ends a process; everything else arrives as an exception."""

LONGEST_TEXT = 500
"""Characters of a message that come from the file."""


class Session:
    """An ONNX model that computes logits; safe to use from several threads."""

    def __init__(self, model: bytes, threads: int = 0) -> None:
        """Load the model on the CPU."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or cpus()
        options.log_severity_level = QUIET
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", NOWHERE)
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common class of their own
            raise ValueError(f"onnxruntime cannot load it: {_first_line(error)}") from error

    def __call__(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Logits, shape (n, classes), of images, shape (n, H, W, C)."""
        logits: npt.NDArray[np.float32] = self._session.run([OUTPUT], {INPUT: images})[0]
        return logits

    def check(self, signature: Signature) -> None:
        """Compare inputs and outputs with a signature; raises ValueError where they differ."""
        inputs = [(one.name, one.type, *one.shape[1:]) for one in self._session.get_inputs()]
        outputs = [(one.name, one.type, *one.shape[1:]) for one in self._session.get_outputs()]
        expected = (
            [(INPUT, "tensor(uint8)", *signature.shape)],
            [(OUTPUT, "tensor(float)", len(signature.classes))],
        )
        if (inputs, outputs) != expected:
            raise ValueError(
                f"it takes {inputs} and gives {outputs}, not {expected[0]} and {expected[1]}"[:500]
            )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:LONGEST_TEXT]
