"""A rank of ddpipe's training; rank 1 is killed within an epoch, at the first start only."""

from __future__ import annotations

import os
import signal

from training_ranks import SignalAtStep, train_from_command_line

STEP, STORED = 25, 19

if __name__ == "__main__":
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    train_from_command_line([SignalAtStep(1, STEP, signal.SIGKILL, stored=STORED)] if first else [])
