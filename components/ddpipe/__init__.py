"""Distributed PyTorch training as Kubeflow Pipelines components."""
