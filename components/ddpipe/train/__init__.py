"""What runs inside a training job's processes: `python -m ddpipe.train`. `recipe` needs no torch."""
