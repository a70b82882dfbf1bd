"""Torchvision's classification models, fitted to the images, and pretrained weights, fetched without pickle.

Both are fitted to the images: their channels, their size, their classes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import safetensors
import torchvision
from safetensors.torch import load as load_safetensors
from torch import Tensor, hub, nn
from torchvision.models import DenseNet, ResNet

from ddpipe.errors import ParameterError, Unreachable, first_line, listed
from ddpipe.model.own import cannot_build
from ddpipe.model.tensors import read_tensors
from ddpipe.storage import read_uri

TORCHVISION = "torchvision"

_WRAPPERS = ("state_dict", "model")  # keys under which training scripts put the weights among other things

Weights = Mapping[str, Tensor]

PATIENCE = 3  # seconds to wait for torchvision's server: without it, training starts from random weights


@dataclass(frozen=True, slots=True)
class Lookup:
    """Whether a network's pretrained weights can be had: in the cache or from their server."""

    found: bool
    seen: str


def look_up(name: str, opened: Callable[..., Any] = urlopen) -> Lookup:
    """Look for torchvision's weights: in the folder where torch keeps downloads, then on their server."""
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
    """Replace a network's fresh weights by pretrained ones; the last layer's if the classes are as many.

    A first convolution for other channels takes the mean over its old ones, scaled so that a gray image is
    as good as its copy in every channel; a smaller one takes the center.
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
    if margin := (found.shape[2] - fresh.shape[2]) // 2:
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
    # What DistributedDataParallel, and a model package of ours, put before each name.
    return {
        str(key).removeprefix("module.").removeprefix("network."): value for key, value in content.items()
    }


def is_finite(values: Tensor) -> bool:
    """Whether there is no NaN and no infinity among the values, of any shape."""
    return not values.is_floating_point() or bool(values.isfinite().all())


def _not_weights(uri: str, seen: str) -> ParameterError:
    return ParameterError(
        what="pretrained weights cannot be read",
        which=uri,
        seen=seen,
        do="Give a file of torch.save(model.state_dict()), or safetensors, with finite weights. Save the "
        "state_dict() of a pickled model first: opening a pickle runs code in it.",
    )


SMALL = 64  # pixels up to which a network must not shrink the images before it has looked at them


def build_torchvision(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The model that torchvision calls `name`, with fresh weights, for images of this shape."""
    names = torchvision.models.list_models(module=torchvision.models)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0) if name else names
        raise cannot_build(
            name,
            f"torchvision {torchvision.__version__} has no classification model of this name",
            f"Choose another, such as {', '.join(near)}.",
        )
    height, width, channels = shape
    builder = torchvision.models.get_model_builder(name)
    try:
        network: nn.Module = builder(num_classes=classes, **_options(builder, height, width))
    except (ValueError, RuntimeError) as error:
        raise cannot_build(
            name,
            f"for images of {width}x{height} pixels torchvision reports: {error}",
            "Prepare images of a size that it accepts, such as 224, or choose another model.",
        ) from error
    if min(height, width) <= SMALL:
        _keep_small_images(network)
    name, stem = first_convolution(network)
    if channels != stem.in_channels:
        network.set_submodule(name, _like(stem, channels, size=stem.kernel_size[0], stride=stem.stride[0]))
    return network


def first_convolution(network: nn.Module) -> tuple[str, nn.Conv2d]:
    """The convolution that sees the images, and its name."""
    return next((name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d))


def _options(builder: Any, height: int, width: int) -> dict[str, Any]:  # noqa: ANN401 - any of torchvision's
    """Arguments that particular models need."""
    # Initialized as every other model: their own initialization takes half a minute.
    options: dict[str, Any] = {"weights": None}
    if builder.__name__ in {"googlenet", "inception_v3"}:
        # Auxiliary outputs, which normalization has made unnecessary.
        options |= {"aux_logits": False, "init_weights": False}
    if builder.__name__.startswith("vit_") and height == width:
        options["image_size"] = height
    if builder.__name__.startswith("maxvit_"):
        options["input_size"] = (height, width)
    return options


def _keep_small_images(network: nn.Module) -> None:
    """Look at every pixel first, where photographs are shrunk: He et al., CVPR 2016, section 4.2."""
    name, stem = first_convolution(network)
    if stem.kernel_size[0] > stem.stride[0] > 1:
        size = 3 if isinstance(network, (ResNet, DenseNet)) else stem.kernel_size[0]
        network.set_submodule(name, _like(stem, stem.in_channels, size=size, stride=1))
    if isinstance(network, ResNet):
        network.maxpool = nn.Identity()
    if isinstance(network, DenseNet):
        network.features.pool0 = nn.Identity()


def _like(convolution: nn.Conv2d, channels: int, *, size: int, stride: int) -> nn.Conv2d:
    """A convolution with fresh weights like another, for other inputs."""
    padding = convolution.padding if size == convolution.kernel_size[0] else size // 2
    return nn.Conv2d(
        channels,
        convolution.out_channels,
        size,
        stride=stride,
        padding=padding,  # type: ignore[arg-type]  # wider than what it accepts again
        bias=convolution.bias is not None,
    )
