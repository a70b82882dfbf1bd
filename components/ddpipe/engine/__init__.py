"""The server of the pipeline engine, Kubeflow Pipelines 2: versions, runs, schedules, checks.

Everything goes through `kfp.Client`. What that leaves out is added here: time limits, cookies, an upload that
can be repeated, a schedule that can be changed.
"""
