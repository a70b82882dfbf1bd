"""The pipeline engine's server, Kubeflow Pipelines 2, as people use it: versions, runs, schedules, checks.

Everything goes through `kfp.Client`. What that leaves out is added here: time limits, cookies, an upload that
can be repeated, a schedule that can be changed.
"""
