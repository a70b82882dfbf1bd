"""How processes and devices share the training of one model: the strategies by name.

single   one process, one device
dp       one process that splits each batch over the GPUs of its machine (nn.DataParallel)
ddp      every process has the whole model; gradients are averaged over them (DistributedDataParallel)
fsdp     every process has a share of each weight, its gradient and its optimizer state (fully_sharded.py)

A checkpoint made by one may be resumed, or evaluated, under another: its tensors are whole, or in pieces that
are joined when it is read (model/pieces.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from ddpipe.data.manifest import Shape
from ddpipe.distributed import World
from ddpipe.errors import ParameterError
from ddpipe.model.architectures import Classifier
from ddpipe.train.choices import Strategies
from ddpipe.train.replicated import DataParallelStrategy, DistributedDataParallelStrategy, Strategy


def is_sharded(name: str, world: World) -> bool:
    """Whether each of these ranks has a share of the model only."""
    return Strategies(name) is Strategies.FSDP and world.size > 1


def strategy_named(name: str, world: World) -> Callable[[Classifier, Shape, World], Strategy]:
    """The strategy of this name, or for "auto" the one that suits the number of processes.

    For one process, ddp and fsdp are the same as single.
    """
    chosen = Strategies(name)
    match chosen:
        case Strategies.SINGLE | Strategies.DP if world.size > 1:
            raise ParameterError(
                what="training cannot start",
                which=f"strategy {name!r}",
                seen=f"it is for one process, and there are {world.size}",
                do="Choose ddp or fsdp, or start one process.",
            )
        case Strategies.DP:
            return DataParallelStrategy
        case Strategies.SINGLE | Strategies.AUTO | Strategies.DDP | Strategies.FSDP if world.size == 1:
            return Strategy
        case Strategies.FSDP:
            from ddpipe.train.fully_sharded import FullyShardedStrategy  # noqa: PLC0415 - a second to import

            return FullyShardedStrategy
        case Strategies.AUTO | Strategies.DDP | Strategies.SINGLE:
            return DistributedDataParallelStrategy
        case other:
            assert_never(other)
