"""torchrun, started and ended faster: `python -m ddpipe.torchrun` takes what `torchrun` takes."""

from __future__ import annotations

from ddpipe.process import clean_up_and_leave, search_rarely


def main() -> None:
    """Start the ranks, and wait for them."""
    search_rarely()
    from torch.distributed.run import main as torchrun  # noqa: PLC0415 - torch, after `search_rarely`

    torchrun()
    clean_up_and_leave(0)


if __name__ == "__main__":
    main()
