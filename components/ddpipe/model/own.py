"""A network, a loss or an augmentation of the user's own, as `package.module:function`.

The function of a network takes (shape, classes), shape being (height, width, channels), and returns a
torch.nn.Module, which is tried before training. A loss takes (logits, labels), an augmentation
(images, labels). What they raise is the user's error and is reported with the user's lines.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from ddpipe.data.manifest import Shape
from ddpipe.errors import ParameterError
from ddpipe.processes.packing import imported

CANNOT_BUILD = "the network cannot be built"
LINES = 3  # of the user's own code, in a message: the innermost calls
TRIAL_BATCH = 2  # images: the fewest with which batch normalization works


def build_own(name: str, shape: Shape, classes: int) -> nn.Module:
    """The network of the user's function; its name must never come from a file, as it is imported."""
    with _reported(f"model {name!r}", CANNOT_BUILD):
        network = imported(name)(shape, classes)
    if not isinstance(network, nn.Module):
        raise cannot_build(
            name,
            f"the function returned {type(network).__name__}, not a torch.nn.Module",
            "It must return a network: function(shape, classes), shape being (height, width, channels).",
        )
    return network


def own_loss(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The losses of the samples, shape (n,), by the user's function, which may return their mean."""
    which = f"loss {name!r}"
    with _reported(which, _CANNOT_BE_USED):
        function = imported(name)

    def losses(logits: Tensor, labels: Tensor) -> Tensor:
        if not len(logits):
            return logits.sum(1)  # a rank without a share: a mean over nothing would be no number
        with _reported(which, _CANNOT_BE_USED):
            loss = function(logits, labels)
        if not isinstance(loss, Tensor) or loss.shape not in {(), logits.shape[:1]} or not loss.requires_grad:
            raise _unusable(
                which, loss, "Return the loss of each image, or their mean, computed from the logits."
            )
        return loss.float().expand(len(logits))

    return losses


def own_augmentation(name: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The user's function, on uint8 images, shape (n, H, W, C); it sees float32 from 0 to 1, (n, C, H, W)."""
    which = f"augmentation {name!r}"
    with _reported(which, _CANNOT_BE_USED):
        function = imported(name)

    def augmented(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if not len(images):
            return images, labels
        given = images.permute(0, 3, 1, 2).float() / 255
        with _reported(which, _CANNOT_BE_USED):
            found = function(given, labels)
        match found:
            case (Tensor(shape=given.shape) as changed, Tensor() as targets) if len(targets) == len(labels):
                return changed.permute(0, 2, 3, 1) * 255, targets
        raise _unusable(which, found, f"Return images of shape {tuple(given.shape)}, and their labels.")

    return augmented


_CANNOT_BE_USED = "this function of your own cannot be used"


def _unusable(which: str, found: object, do: str) -> ParameterError:
    parts = found if isinstance(found, tuple) else (found,)
    seen = [
        f"a tensor of shape {tuple(one.shape)}" if isinstance(one, Tensor) else type(one).__name__
        for one in parts
    ]
    return ParameterError(what=_CANNOT_BE_USED, which=which, seen=f"it returned {' and '.join(seen)}", do=do)


def try_training(network: nn.Module, name: str, shape: Shape) -> None:
    """Take two images forward and backward, as training will; the network is left as it was."""
    if not any(weights.requires_grad for weights in network.parameters()):
        raise cannot_build(
            name,
            "it has no weights that can be trained: it has no parameters, or all of them are frozen",
            "Register the weights as torch.nn.Parameter, and leave requires_grad on for some of them.",
        )
    height, width, channels = shape
    statistics = {key: value.clone() for key, value in network.named_buffers()}
    random = torch.get_rng_state()
    mode = network.training
    try:
        with _reported(f"model {name!r}", CANNOT_BUILD):
            network.train()(torch.zeros(TRIAL_BATCH, channels, height, width)).square().sum().backward()
    finally:
        network.train(mode)
        network.zero_grad(set_to_none=True)
        torch.set_rng_state(random)
        with torch.no_grad():
            for key, value in network.named_buffers():
                if key in statistics and value.shape == statistics[key].shape:
                    value.copy_(statistics[key])


@torch.no_grad()
def check_logits(network: nn.Module, name: str, shape: Shape, classes: int) -> None:
    """Reject a network that does not turn images of this shape into one logit for each class."""
    height, width, channels = shape
    training = network.training
    try:
        logits = network.eval()(torch.zeros(TRIAL_BATCH, channels, height, width))
    except (Exception, SystemExit) as error:  # the network may be anybody's and raise anything
        raise cannot_build(
            name,
            f"it does not accept images of {width}x{height} pixels and {channels} channels: "
            f"{_described(error)}",
            "A function of your own gets shape = (height, width, channels), its network images of shape "
            "(n, channels, height, width)."
            if ":" in name
            else "Prepare the dataset with images that it accepts, or choose another model.",
        ) from error
    network.train(training)
    expected = (TRIAL_BATCH, classes)
    if not isinstance(logits, Tensor) or logits.shape != expected:
        seen = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise cannot_build(
            name,
            f"for 2 images it returns {seen}, not {expected}",
            "It must return one logit for each class.",
        )


@contextmanager
def _reported(which: str, what: str) -> Iterator[None]:
    """Report what the user's code raises as the user's error."""
    try:
        yield
    except ParameterError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        do = "Correct the function, or put its package where Python finds it (PYTHONPATH)."
        raise ParameterError(what=what, which=which, seen=_described(error), do=do) from error


def _described(error: BaseException) -> str:
    """The error, and the innermost lines of the code that is neither ours nor a library's."""
    libraries = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parents[1]), "<")
    lines = [
        f"{frame.filename}, line {frame.lineno}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries) and "site-packages" not in frame.filename
    ]
    place = f" ({'; '.join(lines[-LINES:])})" if lines else ""
    return f"{type(error).__name__}: {error}{place}"


def cannot_build(name: str, seen: str, do: str) -> ParameterError:
    """The error of a network that cannot be built."""
    return ParameterError(what=CANNOT_BUILD, which=f"model {name!r}", seen=seen, do=do)
