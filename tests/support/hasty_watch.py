"""Runs plain_script.py, which stays as it is, under a watch in a hurry: `hasty_watch.py HOW`."""

import runpy
from pathlib import Path

from ddpipe.distributed import watch

watch.LOOK, watch.LEAVE = 0.25, 5.0
runpy.run_path(str(Path(__file__).with_name("plain_script.py")), run_name="__main__")
