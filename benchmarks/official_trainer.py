"""What one would write today with the Kubeflow SDK (PyPI `kubeflow`): create a TrainJob, poll until its end.

    python official_trainer.py MANIFEST SECONDS [without-logs]

Runs in an environment of its own, that has kubeflow 0.5.0; by default it would wait for 600 s.
"""

import json
import sys

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import TrainerClient
from kubernetes import client, config

manifest, seconds = json.loads(sys.argv[1]), int(sys.argv[2])
name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
group, version = manifest["apiVersion"].split("/")
config.load_kube_config()
client.CustomObjectsApi().create_namespaced_custom_object(group, version, namespace, "trainjobs", manifest)
trainer = TrainerClient(KubernetesBackendConfig(namespace=namespace))
trainer.wait_for_job_status(name, timeout=seconds)
if "without-logs" not in sys.argv:
    for line in trainer.get_job_logs(name):
        sys.stdout.write(f"{line}\n")
