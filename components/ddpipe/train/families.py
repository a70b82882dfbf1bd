"""Networks that train alike: the optimizer and the rates that suit them, from random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddpipe.model import is_own_function


@dataclass(frozen=True, slots=True)
class Family:
    """Networks that train alike.

    Attributes:
        optimizer: What suits them.
        rates: Peak learning rate by optimizer, for batches of `batch`.
        batch: Of the rates.
        power: By which the rate follows the size of the batch: 1 in proportion, 0.5 its square root.
        smoothing: Label smoothing.
        grows: Whether early steps may use smaller images.
    """

    optimizer: str
    rates: Mapping[str, float]
    batch: int = 64
    power: float = 1.0
    smoothing: float = 0.1
    grows: bool = False


FAST = Family(
    "muon", {"muon": 0.15, "sgd": 0.05, "adamw": 2e-3}, batch=512, power=0.5, smoothing=0.2, grows=True
)
NORMALIZED = Family("sgd", {"sgd": 0.1, "adamw": 2e-3, "muon": 0.05}, smoothing=0.0)
UNNORMALIZED = Family("sgd", {"sgd": 0.03, "adamw": 1e-3, "muon": 0.02}, smoothing=0.0)
RESIDUAL = Family("sgd", {"sgd": 0.02, "adamw": 1e-3, "muon": 0.02})
PLAIN_DEEP = Family("sgd", {"sgd": 0.005, "adamw": 2e-4, "muon": 0.01})
ATTENTION = Family("adamw", {"sgd": 0.01, "adamw": 5e-4, "muon": 0.02}, power=0.5)

FAMILIES: Mapping[str, Family] = {
    "digits-cnn": NORMALIZED,
    "lenet": UNNORMALIZED,
    "simple-cnn": UNNORMALIZED,
    "fast-cnn": FAST,
    **dict.fromkeys(("alexnet", "squeezenet", "vgg"), PLAIN_DEEP),
    **dict.fromkeys(("vit", "swin", "maxvit", "convnext"), ATTENTION),
}
"""By the beginning of a network's name; the others train like residual networks."""


def family_of(network: str) -> Family:
    """The family of a network, by its name; what a function of the user's own gives is not known."""
    found = (family for start, family in FAMILIES.items() if network.startswith(start))
    return ATTENTION if is_own_function(network) else next(found, RESIDUAL)


DECAYS = {"sgd": 5e-4, "adamw": 0.02, "muon": 0.0}
MOMENTA = {"sgd": 0.9, "adamw": 0.9, "muon": 0.6}
WARMUPS = {"sgd": 0.1, "adamw": 0.1, "muon": 0.0}
"""By optimizer; a warm-up is a share of all steps."""
