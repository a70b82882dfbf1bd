"""How ranks that share a model save it together: each writes its pieces before rank 0 refers to them."""

from __future__ import annotations

from collections.abc import Mapping

from ddpipe.distributed import World
from ddpipe.model.pieces import Piece, Share, write_pieces
from ddpipe.storage import Store
from ddpipe.train.saver import Saver, patience_for, uploading


class SharedSaver:
    """Writes the shares of all ranks; every rank has one."""

    def __init__(self, store: Store, world: World, saver: Saver | None) -> None:
        """For the training in this store, whose checkpoints `saver` writes on rank 0."""
        self._store, self._world, self._saver = store, world, saver
        self._step, self._pieces = -1, list[Piece]()

    def write(self, step: int, shares: Mapping[str, Share]) -> list[Piece]:
        """Write this rank's shares of the weights after `step`; every rank calls this.

        A step may be saved twice, for different reasons; its shares are written once.
        """
        if shares and step != self._step:
            folder = self._world.decided(lambda: self._saver.folder if self._saver else "")
            stem = f"{folder}step-{step:08d}.rank-{self._world.rank:05d}"
            own: list[Piece] = []
            with uploading(patience_for(self._store)) as uploads:
                uploads.put(
                    "a share of a checkpoint", lambda: own.extend(write_pieces(self._store, stem, shares))
                )
            ranks = self._world.collected(own)
            self._step, self._pieces = step, [piece for pieces in ranks for piece in pieces]
        return self._pieces
