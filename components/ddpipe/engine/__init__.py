"""The server of the pipeline engine, Kubeflow Pipelines 2: versions, runs, schedules, checks.

Requests go to the REST API, without `kfp.Client`: with time limits, cookies, an upload that can be repeated,
and a schedule that can be changed.
"""
