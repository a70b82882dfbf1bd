"""The pipelines: definitions, compiled packages and notebooks."""
