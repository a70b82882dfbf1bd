"""Any image and command as a PyTorchJob: one step that launches it, follows it and fails when it fails."""

from typing import Any, Dict, List  # noqa: UP035 - kfp knows no others

from kfp import dsl

from ddpipe import steps

NAME = "ddpipe-custom-job"


@dsl.pipeline(name=NAME, display_name="ddpipe: run any PyTorchJob")
def custom_job(
    image: str,
    command: List[str],  # noqa: UP006
    env: Dict[str, str] = {},  # noqa: B006, UP006 - a value of the interface, never changed
    nodes: int = 2,
    processes: int = 1,
    cpu: str = "1",
    memory: str = "4Gi",
    gpus: int = 0,
    outputs: List[str] = [],  # noqa: B006, UP006
    volumes: List[str] = [],  # noqa: B006, UP006
    s3_endpoint: str = "minio-service.kubeflow:9000",
    s3_secret: str = "",
    queue: str = "",
    keep: str = "never",
    patch: Dict[str, Any] = {},  # noqa: B006, UP006
) -> None:
    """Run any image and command as a PyTorchJob and wait for it: green if and only if it succeeded.

    Args:
        image: Image of the pods.
        command: Command of the pods with its arguments, such as ["torchrun", "train.py"].
        env: Further environment variables.
        nodes: Pods.
        processes: Training processes per pod, for torchrun.
        cpu: CPUs per pod.
        memory: Memory per pod.
        gpus: GPUs per pod.
        outputs: URIs that must exist before the job counts as a success.
        volumes: What is mounted: claim:NAME:PATH, secret:NAME:PATH, config:NAME:PATH; :ro for reading only.
        s3_endpoint: Object store, as pods reach it.
        s3_secret: Secret with its accesskey and secretkey. Empty: none is needed.
        queue: Kueue queue.
        keep: Which ended jobs stay on the cluster: never, failed, always.
        patch: Strategic merge patch of the pod template, for anything unusual.
    """
    cleaned = steps.clean_up(pipeline=NAME, run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER)
    cleaned.set_caching_options(enable_caching=False)
    with dsl.ExitHandler(cleaned, name="steps"):
        task = steps.pytorch_job(
            pipeline=NAME,
            run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            task_id=dsl.PIPELINE_TASK_ID_PLACEHOLDER,
            step="job",
            image=image,
            command=command,
            env=env,
            nodes=nodes,
            processes=processes,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            outputs=outputs,
            volumes=volumes,
            s3_endpoint=s3_endpoint,
            s3_secret=s3_secret,
            queue=queue,
            keep=keep,
            patch=patch,
        )
        task.set_caching_options(enable_caching=False)
