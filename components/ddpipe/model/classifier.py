"""A classifier of stored images: a network with its preprocessing, from a name or from a checkpoint.

Our own networks are in `networks`, those of torchvision in `torchvision_models`, the user's in `own`.

What is rebuilt from a checkpoint may come from a bucket that others can write to. It is data: its numbers are
checked before they size anything, its tensors must be those of the network that it names, and a function that
it names is never imported because the file says so, only if the user's own recipe names the same one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ddpipe.data.manifest import Shape
from ddpipe.errors import CheckpointError, ParameterError, listed
from ddpipe.model import ARCHITECTURES, ModelNames, is_own_function, networks
from ddpipe.model.checkpoint import Checkpoint, finished, load
from ddpipe.model.own import build_own, cannot_build, check_logits
from ddpipe.model.training_record import RECORD
from ddpipe.parameters import AUTO
from ddpipe.storage import open_store


@runtime_checkable
class InitializedFromImages(Protocol):
    """A network some of whose first weights are computed from images."""

    def initialize(self, images: Tensor) -> None:
        """Let the network set its first weights from uint8 images, shape (N, H, W, C), if it can."""


class Classifier(nn.Module):
    """A network together with its preprocessing: trained, evaluated and exported as this one module."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        """Keep `mean` and `std`, per channel, for pixels scaled to 0..1, with the weights."""
        super().__init__()
        self.network = network  # from normalized images, shape (N, C, H, W), to logits, shape (N, classes)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        # A channel that never varies must not divide by zero: one gray level is the least deviation.
        self.register_buffer(
            "std", torch.tensor(std, dtype=torch.float32).clamp(min=1 / 255).view(1, -1, 1, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of uint8 images, shape (N, H, W, C); normalized on their device."""
        logits: Tensor = self.network(self._normalized(images))
        return logits

    def initialize(self, images: Tensor) -> None:
        """Let the network set its first weights from uint8 images, shape (N, H, W, C), if it can."""
        if isinstance(self.network, InitializedFromImages):
            self.network.initialize(self._normalized(images))

    def _normalized(self, images: Tensor) -> Tensor:
        pixels = images.permute(0, 3, 1, 2).float() / 255
        return (pixels - self.mean) / self.std


def build(name: str, shape: Shape, classes: int, *, trusted: str = "", is_tried: bool = True) -> nn.Module:
    """The network called `name`, with fresh weights from torch's random numbers.

    A function (`package.module:function`) is imported only if `trusted`, the name in the user's own recipe,
    is the same, never because a file names it. If `is_tried`, two images of the shape are computed, to reject
    a network that does not take them: never of a shape that a file claims, as a small file must not size a
    computation.
    """
    if name in ARCHITECTURES:
        built: nn.Module = getattr(networks, name.replace("-", "_"))(shape, classes)
        return built
    if is_own_function(name):
        if name != trusted:
            raise cannot_build(
                name,
                "it is a function that the recipe does not name: only functions named there are imported",
                "If you trust that function, name it yourself.",
            )
        network = build_own(name, shape, classes)
    else:
        # Only what needs torchvision waits for its import.
        from ddpipe.model.torchvision_models import build_torchvision  # noqa: PLC0415

        network = build_torchvision(name, shape, classes)
    if is_tried:
        check_logits(network, name, shape, classes)
    return network


LARGEST_SIDE, MOST_CHANNELS, MOST_CLASSES = 65_536, 1024, 1_000_000
"""Beyond any image and any dataset: what a file claims above these is not a network."""


def load_model(training_uri: str, *, network: str = "") -> tuple[Classifier, Checkpoint]:
    """The model that a finished training names as its result, on the CPU and in evaluation mode."""
    store = open_store(training_uri)
    saved = finished(store)
    if saved is None:
        raise CheckpointError(
            what="there is no trained model",
            which=store.uri,
            seen=f"the training has not finished: it has no {RECORD}",
            do="Name the output of a training; if it was interrupted, run it again to resume.",
        )
    checkpoint = load(store, saved)
    return classifier_of(checkpoint, network=network, origin=f"{store.uri}/{saved.file}"), checkpoint


def classifier_of(checkpoint: Checkpoint, *, network: str = "", origin: str = "checkpoint") -> Classifier:
    """The model in a checkpoint, on the CPU and in evaluation mode."""
    name, shape, classes = _facts(checkpoint.network, origin)
    weights = _weights(checkpoint.states, origin)
    if is_own_function(name):
        _check_named(name, network, origin)
    else:
        _check_shapes(weights, name, shape, classes, origin)
    built = build(name, shape, classes, trusted=network, is_tried=False)
    classifier = Classifier(built, [0.0] * shape[2], [1.0] * shape[2])
    try:
        classifier.load_state_dict(versioned(weights, classifier))
    except RuntimeError as error:
        raise _malformed(origin, f"its weights do not fit network {name!r}: {error}") from error
    return classifier.eval()


def versioned(weights: Mapping[str, Tensor], module: nn.Module) -> Mapping[str, Tensor]:
    """Weights of any shape with their layers' versions: MNASNet rejects others, and a file has none."""
    state = OrderedDict(weights)
    state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]  # noqa: SLF001
    return state


def _facts(found: object, origin: str) -> tuple[str, Shape, int]:
    """Name, image shape and number of classes of a network, checked."""
    values = found if isinstance(found, Mapping) else {}
    name, shape, classes = (values.get(key) for key in ("name", "shape", "classes"))
    limits = (LARGEST_SIDE, LARGEST_SIDE, MOST_CHANNELS)
    problems = []
    if not isinstance(name, str) or name == AUTO or name not in ModelNames():
        problems.append(f"{name!r} is not the name of a network")
    if (
        not isinstance(shape, (list, tuple))
        or len(shape) != len(limits)
        or not all(map(_is_count, shape, limits))
    ):
        problems.append(f"{shape!r} is not a shape: height, width and channels")
    if not _is_count(classes, MOST_CLASSES):
        problems.append(f"{classes!r} is not a number of classes")
    if problems:
        raise _malformed(origin, listed(problems))
    height, width, channels = shape  # type: ignore[misc]
    return name, (height, width, channels), classes  # type: ignore[return-value]


def _is_count(value: object, largest: int) -> bool:
    return type(value) is int and 1 <= value <= largest


def _weights(states: object, origin: str) -> dict[str, Tensor]:
    weights = states.get("model") if isinstance(states, Mapping) else None
    if not isinstance(weights, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in weights.items()
    ):
        raise _malformed(origin, "it does not hold the weights of a model by name")
    return dict(weights)


def _check_named(name: str, network: str, origin: str) -> None:
    """Import nothing because a file says so."""
    if name != network:
        raise CheckpointError(
            what="the model cannot be rebuilt",
            which=origin,
            seen=f"it names the function {name}, and "
            + (f"the network given is {network}" if network else "no network was given"),
            do=f"If you trust that function, name it yourself: network={name}. A file alone never decides "
            "which code runs.",
        )


def _check_shapes(weights: Mapping[str, Tensor], name: str, shape: Shape, classes: int, origin: str) -> None:
    """Compare the weights with the network's on the meta device, before any memory is allocated for it."""
    if not any(classes in value.shape for value in weights.values()):
        raise _malformed(origin, f"none of its weights is for {classes} classes")
    if name.startswith("regnet_"):
        return  # computes its widths with tensors, which have no values there; only `classes` sizes it
    try:
        with torch.device("meta"):  # shapes without memory
            empty = Classifier(build(name, shape, classes), [0.0] * shape[2], [1.0] * shape[2])
    except ParameterError as error:
        raise _malformed(origin, f"{error.seen}") from error
    expected = {key: tuple(value.shape) for key, value in empty.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in weights.items()}
    if problems := [
        f"{key} has shape {found.get(key)}, not {expected.get(key)}"
        for key in sorted(expected.keys() | found.keys())
        if found.get(key) != expected.get(key)
    ]:
        raise _malformed(
            origin, f"its weights are not those of {name} for {classes} classes: {listed(problems)}"
        )


def _malformed(origin: str, seen: str) -> CheckpointError:
    return CheckpointError(
        what="the model cannot be rebuilt",
        which=origin,
        seen=seen,
        do="Use the checkpoint as the training wrote it, or train again.",
    )
