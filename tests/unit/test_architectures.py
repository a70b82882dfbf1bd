"""Networks by name, and classifiers of stored images."""

from __future__ import annotations

import pytest
import torch

from ddpipe.errors import ParameterError
from ddpipe.model import ARCHITECTURES, architectures
from ddpipe.model.architectures import Classifier, build


def some_images(count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    return torch.randint(
        0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_every_name_has_its_builder() -> None:
    assert set(ARCHITECTURES) == set(architectures._BUILDERS)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("shape", [(8, 8, 1), (4, 5, 3), (17, 12, 1)])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_classifier_takes_stored_images_of_any_number(
    name: str, shape: tuple[int, int, int], count: int
) -> None:
    channels = shape[2]
    classifier = Classifier(build(name, shape, 3), [0.5] * channels, [0.2] * channels)
    logits = classifier(some_images(count, shape))
    assert logits.shape == (count, 3)
    assert logits.dtype == torch.float32
    logits.sum().backward()
    assert all(weights.grad is not None for weights in classifier.parameters())


def test_each_channel_is_normalised_by_its_own_mean_and_deviation() -> None:
    classifier = Classifier(torch.nn.Flatten(), mean=[0.0, 0.5], std=[1.0, 0.25])
    pixels = torch.tensor([[[[255, 255]]]], dtype=torch.uint8)
    assert classifier(pixels).tolist() == [[1.0, 2.0]]


def test_a_channel_that_never_varies_does_not_divide_by_zero() -> None:
    classifier = Classifier(torch.nn.Flatten(), mean=[1.0], std=[0.0])
    assert classifier(torch.full((1, 2, 2, 1), 255, dtype=torch.uint8)).isfinite().all()


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second = (_weights_of_seed(7) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def _weights_of_seed(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return list(build("digits-cnn", (8, 8, 1), 10).parameters())


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"'vgg'.*digits-cnn"):
        build("vgg", (8, 8, 1), 10)


def test_images_too_small_for_a_network_are_refused() -> None:
    with pytest.raises(ParameterError, match="3x8 pixels"):
        build("digits-cnn", (3, 8, 1), 10)
