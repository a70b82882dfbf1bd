"""What a search over hyperparameters looks for: the space, the options, the winner. No I/O, no sampler."""
