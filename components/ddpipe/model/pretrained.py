"""Pretrained weights: fetched without pickle, fitted to a network of other channels, stem or classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import safetensors
from safetensors.torch import load as load_safetensors
from torch import Tensor, hub, nn

from ddpipe.errors import ParameterError, Unreachable, listed
from ddpipe.model.tensors import first_line, read_tensors
from ddpipe.storage import read_uri

TORCHVISION = "torchvision"

_WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts put the weights among other things."""

_PREFIXES = ("module.", "network.")
"""What DistributedDataParallel, and a model package of ours, put before each name."""

Weights = Mapping[str, Tensor]

PATIENCE = 3
"""Seconds to wait for an answer of torchvision's server: without it, training starts from random weights."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Whether a network's pretrained weights can be had.

    Attributes:
        found: They are in the cache, or their server answers.
        seen: Where they were looked for, and what was seen.
    """

    found: bool
    seen: str


def look_up(name: str, opened: Callable[..., Any] = urlopen) -> Lookup:
    """Look for torchvision's weights: in the folder where torch keeps downloads, then on their server."""
    # Only what needs torchvision waits for its import.
    import torchvision  # noqa: PLC0415

    try:
        url = torchvision.models.get_model_weights(name).DEFAULT.url
    except ValueError:
        return Lookup(found=False, seen=f"torchvision has no weights of {name}")
    file = Path(hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if file.exists():
        return Lookup(found=True, seen=f"{file} is there")
    try:
        with opened(Request(url, method="HEAD"), timeout=PATIENCE):  # noqa: S310 - torchvision's own address
            return Lookup(found=True, seen=f"{url} can be downloaded")
    except OSError as error:
        reason = getattr(error, "reason", error)
        return Lookup(
            found=False, seen=f"{file.name} is not in {file.parent}, and {url} cannot be reached ({reason})"
        )


def load_pretrained(network: nn.Module, name: str, source: str, classes: int) -> None:
    """Replace a network's fresh weights by pretrained ones.

    A first convolution for other channels takes the mean over its old ones, scaled so that a gray image
    counts as its copy in every channel; a smaller one takes the center. The last layer keeps its fresh
    weights unless it has as many classes.
    """
    weights = _from_torchvision(name) if source == TORCHVISION else _from_file(source)
    own, head = network.state_dict(), _head(network, classes)
    fitted, problems = {}, []
    for key, fresh in own.items():
        found = weights.get(key)
        adapted = None if found is None else _adapted(found, fresh)
        if adapted is not None:
            fitted[key] = adapted
        elif key not in head and not key.endswith("num_batches_tracked"):
            seen = (
                "is missing" if found is None else f"has shape {tuple(found.shape)}, not {tuple(fresh.shape)}"
            )
            problems.append(f"{key} {seen}")
    if problems:
        raise ParameterError(
            what="pretrained weights do not fit the network",
            which=f"{source} for model {name!r}",
            seen=listed(problems),
            do="Name weights of this very network, or the network that they are of.",
        )
    network.load_state_dict(own | fitted)


def _adapted(found: Tensor, fresh: Tensor) -> Tensor | None:
    """Weights in the shape of fresh ones, or None where that would be another layer."""
    if found.shape == fresh.shape:
        return found
    convolutions = found.ndim == fresh.ndim == 4  # noqa: PLR2004 - outputs, inputs, height, width
    if not convolutions or len(found) != len(fresh):
        return None
    if found.shape[1] != fresh.shape[1]:
        found = found.mean(1, keepdim=True).expand(-1, fresh.shape[1], -1, -1) * (
            found.shape[1] / fresh.shape[1]
        )
    margin = (found.shape[2] - fresh.shape[2]) // 2
    if margin:
        found = found[:, :, margin:-margin, margin:-margin]
    return found if found.shape == fresh.shape else None


def _head(network: nn.Module, classes: int) -> set[str]:
    """Names of the last layer's weights, if it is the one that gives the logits."""
    layers = [
        (name, module)
        for name, module in network.named_modules()
        if isinstance(module, (nn.Linear, nn.Conv2d))
    ]
    if not layers:
        return set()
    name, last = layers[-1]
    outputs = last.out_features if isinstance(last, nn.Linear) else last.out_channels
    return {f"{name}.weight", f"{name}.bias"} if outputs == classes else set()


def _from_torchvision(name: str) -> Weights:
    # Only what needs torchvision waits for its import.
    import torchvision  # noqa: PLC0415

    try:
        weights = torchvision.models.get_model_weights(name).DEFAULT
    except ValueError:
        raise ParameterError(
            what="there are no pretrained weights",
            which=f"model {name!r}",
            seen="it is not a network of torchvision",
            do="Give the path or URI of a file as `pretrained`, or leave it empty.",
        ) from None
    try:
        state: Weights = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except OSError as error:
        raise Unreachable(
            what="pretrained weights cannot be fetched",
            which=weights.url,
            seen=str(error) or type(error).__name__,
            do="Get the file on a connected machine, and give its path or s3:// URI as `pretrained`.",
        ) from error
    return state


def _from_file(uri: str) -> Weights:
    data = read_uri(uri)
    try:
        content = load_safetensors(data) if uri.endswith(".safetensors") else read_tensors(data)
    except (safetensors.SafetensorError, ValueError) as error:
        raise _not_weights(uri, first_line(error)) from error
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise _not_weights(uri, "it does not hold weights by name")
    if broken := [str(key) for key, value in content.items() if not is_finite(value)]:
        raise _not_weights(
            uri, f"{len(broken)} of {len(content)} weights are NaN or infinite, the first is {broken[0]}"
        )
    return {_unprefixed(str(key)): value for key, value in content.items()}


def is_finite(values: Tensor) -> bool:
    """Whether there is no NaN and no infinity among the values, of any shape."""
    return not values.is_floating_point() or bool(values.isfinite().all())


def _unprefixed(key: str) -> str:
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _not_weights(uri: str, seen: str) -> ParameterError:
    return ParameterError(
        what="pretrained weights cannot be read",
        which=uri,
        seen=seen,
        do="Give a file of torch.save(model.state_dict()), or safetensors, with finite weights. Save the "
        "state_dict() of a pickled model first: opening a pickle runs code in it.",
    )
