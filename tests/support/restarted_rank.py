"""A rank of ddpipe's training; rank 1 is killed amid an epoch, at the first start only."""

from __future__ import annotations

import os
import signal

from training_ranks import SignalAtStep

from ddpipe.train.__main__ import main

STEP, STORED = 25, 19

if __name__ == "__main__":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        SignalAtStep(1, STEP, signal.SIGKILL, stored=STORED)()
    main()
