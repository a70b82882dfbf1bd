"""The rule by which samples are assigned to splits; a value, importable without numpy."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

CUT = ("test", "validation", "train")
"""The splits in the order in which they lie on the line of positions; see `ddpipe.prepare.splitting`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """How samples are assigned to splits.

    Attributes:
        fractions: Share of each split; they add up to 1.
        seed: Another seed gives other splits.
        folds: Number of pieces for cross-validation; 0: none, validation has its own share.
        fold: Which of them is validation, from 0.
        exact: Whether each class's share is met within one unit.
    """

    fractions: Mapping[str, float]
    seed: int = 0
    folds: int = 0
    fold: int = 0
    exact: bool = False

    def pieces(self, given: Collection[str]) -> dict[str, float]:
        """The pieces of the line of positions: splits or folds, in their order, with their shares."""
        shares = {split: self.fractions[split] for split in CUT if split == "train" or split not in given}
        if self.folds and "validation" in shares:
            rest = shares.pop("validation") + shares.pop("train")
            shares |= {f"fold {fold}": rest / self.folds for fold in range(self.folds)}
        return {piece: share / sum(shares.values()) for piece, share in shares.items()}

    def split_of(self, piece: str) -> str:
        """The split that a piece is, or is a part of."""
        if piece in CUT:
            return piece
        return "validation" if piece == f"fold {self.fold}" else "train"
