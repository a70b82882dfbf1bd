"""The pipelines: definitions, compiled packages, and how to run them here or on a cluster."""
