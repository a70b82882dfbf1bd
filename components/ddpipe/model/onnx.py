"""PyTorch -> ONNX; `session` computes with what this writes.

It is part of the model format, not of the export step, so that training can try it before it starts.
"""

from __future__ import annotations

import json
import logging
import warnings
from itertools import chain

import torch
from onnx import StringStringEntryProto
from torch import nn

from ddpipe.errors import first_line
from ddpipe.model.package import INPUT, OUTPUT, Signature

# They log each optimization of the graph at INFO, which pipeline engines show.
for _library in ("onnx_ir", "onnxscript", "torch.onnx"):
    logging.getLogger(_library).setLevel(logging.WARNING)


OPSET = 18  # version of the operators: what torch's exporter writes without conversions


def to_onnx(classifier: nn.Module, signature: Signature) -> bytes:
    """The classifier as an ONNX file: uint8 (batch, H, W, C) -> float32 logits of shape (batch, classes)."""
    # Two images: torch.export takes a batch of one for a constant.
    example = torch.zeros((2, *signature.shape), dtype=torch.uint8)
    with warnings.catch_warnings():
        # What the exporter warns of is its own code; whether it did its work is checked on real samples.
        warnings.simplefilter("ignore")
        try:
            program = torch.onnx.export(
                classifier,
                (example,),
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                external_data=False,
                opset_version=OPSET,
                verbose=False,
            )
        except Exception as error:  # torch's exporter raises anything for code that it cannot trace
            raise NotExportable(_cause(error)) from error
    if program is None:
        raise TypeError("torch.onnx.export returns None only when it writes the file itself")
    model = program.model_proto
    graph = model.graph
    parts = (graph.node, graph.input, graph.output, graph.value_info, graph.initializer)
    for noted in (graph, *chain.from_iterable(parts)):
        # The exporter's own: stack traces, with paths of the machine where it ran.
        del noted.metadata_props[:]
    model.metadata_props.extend(
        StringStringEntryProto(key=name, value=json.dumps(value))
        for name, value in signature.to_dict().items()
    )
    return bytes(model.SerializeToString(deterministic=True))


class NotExportable(Exception):
    """A network that torch.onnx cannot express; the text is the first line of the cause."""


def _cause(error: BaseException) -> str:
    """The first line of the innermost cause: the exporter's own text is pages of advice."""
    while error.__cause__:
        error = error.__cause__
    return f"{type(error).__name__}: {first_line(error)}"
