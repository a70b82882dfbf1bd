"""A training job -> its outcome."""
