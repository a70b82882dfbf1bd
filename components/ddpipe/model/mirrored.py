"""Test-time flips as part of a model, so that what is exported answers as what was evaluated."""

from __future__ import annotations

from torch import Tensor, nn


class Mirrored(nn.Module):
    """The mean of a classifier's logits for an image and for its mirror image.

    Attributes:
        classifier: From uint8 images, shape (N, H, W, C), to logits, shape (N, classes).
    """

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor) -> Tensor:
        """Logits of uint8 images: two passes instead of one."""
        logits: Tensor = (self.classifier(images) + self.classifier(images.flip(2))) / 2
        return logits
