"""A program for the official client (PyPI `kubeflow-training`): create, wait, print the log.

    python official.py MANIFEST SECONDS [without-logs]

Runs in a separate environment with kubeflow-training 1.9.4, whose default timeout is 600 s.
"""

import json
import sys

from kubeflow.training import TrainingClient
from kubeflow.training.models import KubeflowOrgV1PyTorchJob
from kubernetes.client import V1ObjectMeta

manifest, seconds = json.loads(sys.argv[1]), int(sys.argv[2])
name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
client = TrainingClient(namespace=namespace, job_kind="PyTorchJob")
job = KubeflowOrgV1PyTorchJob(
    api_version=manifest["apiVersion"],
    kind=manifest["kind"],
    metadata=V1ObjectMeta(name=name),
    spec=manifest["spec"],
)
client.create_job(job, namespace=namespace)
client.wait_for_job_conditions(name, wait_timeout=seconds)
if "without-logs" not in sys.argv:
    for pod, text in client.get_job_logs(name, is_master=False)[0].items():
        sys.stdout.write(f"{pod}\n{text}\n")
