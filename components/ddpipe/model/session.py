"""An ONNX model of a package -> logits, without torch. The model is not trusted: it is data, and a graph.

A graph can name files that hold its weights; ours hold all of them, so a model that names one is rejected.
A graph can loop for ever or ask for any memory: an answer is bounded in time, and all graphs of a process
together in memory. One image is tried when a model is checked.
"""

from __future__ import annotations

import os
from functools import cache
from threading import Timer

import numpy as np
import numpy.typing as npt
import onnxruntime

from ddpipe.errors import CorruptObject, first_line
from ddpipe.model.evaluation import corrupt
from ddpipe.model.package import FORMAT, INPUT, ONNX, OUTPUT, Signature
from ddpipe.processes.machine import cpus
from ddpipe.storage.sealed import Folder

NOWHERE = f"{os.devnull}/nowhere"  # cannot exist: where weights in files of their own are looked for
QUIET = 4  # onnxruntime's level of logging for what ends a process; everything else arrives as an exception
LONGEST = 300.0  # seconds of an answer; a batch takes a few, on a busy machine more
MOST_MEMORY = 4 * 2**30  # bytes of what graphs compute: 30 times what a usual network needs for a batch


class Session:
    """An ONNX model that computes logits; safe to use from several threads."""

    def __init__(self, model: bytes, threads: int = 0) -> None:
        """Load the model on the CPU."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or cpus()
        options.log_severity_level = QUIET
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", NOWHERE)
        options.add_session_config_entry("session.use_env_allocators", "1")
        _bound_memory()
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common class of their own
            raise ValueError(f"onnxruntime cannot load it: {first_line(error)}") from error

    def __call__(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Logits, shape (n, classes), of images, shape (n, H, W, C)."""
        try:
            return self._answer(images)
        except ValueError as error:
            raise CorruptObject(
                what="a model gives no answer",
                which=f"{len(images)} images of shape {images.shape[1:]}",
                seen=str(error),
                do="Use another model, or fewer or smaller images.",
            ) from error

    def _answer(self, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        run = onnxruntime.RunOptions()
        clock = Timer(LONGEST, lambda: setattr(run, "terminate", True))
        clock.daemon = True
        clock.start()
        try:
            logits: npt.NDArray[np.float32] = self._session.run([OUTPUT], {INPUT: images}, run)[0]
        except Exception as error:  # as above
            late = f"it took longer than {LONGEST:g} s: " if run.terminate else ""
            raise ValueError(f"{late}{first_line(error)}") from error
        finally:
            clock.cancel()
        if logits.ndim != 2 or len(logits) != len(images):  # noqa: PLR2004 - images, classes
            raise ValueError(f"it answers {len(images)} images with {logits.shape} numbers")
        return logits

    def check(self, signature: Signature) -> None:
        """Compare inputs and outputs with a signature, and try an image; raises ValueError for a misfit."""
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
        self._answer(np.zeros((1, *signature.shape), np.uint8))


def session_of(folder: Folder, signature: Signature, threads: int = 0) -> Session:
    """The ONNX model of a package, which may be any graph: it takes and gives what its signature says."""
    try:
        session = Session(folder.read(ONNX), threads)
        session.check(signature)
    except ValueError as error:
        raise corrupt(folder, ONNX, str(error), FORMAT) from error
    return session


@cache
def _bound_memory() -> None:
    """Let all sessions of this process compute in one memory of bounded size, which grows as it is needed."""
    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    arena = onnxruntime.OrtArenaCfg({"max_mem": MOST_MEMORY, "arena_extend_strategy": 1})
    onnxruntime.create_and_register_allocator(place, arena)
