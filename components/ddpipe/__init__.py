"""Distributed PyTorch training as Kubeflow Pipelines components.

From a notebook: `ddpipe.launch(function, …)` returns a handle, `ddpipe.attach(name)` returns it again.
`ddpipe.load_model("runs/first/model").predict(["a.png"])` uses what a run has exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from ddpipe.notebook.handle import Handle
    from ddpipe.notebook.packing import Work
    from ddpipe.serve.model import Model


# The options are those of `ddpipe.jobs.options.JobOptions`, repeated here because editors complete what they
# can read; tests/unit/notebook/test_signature.py compares the two.
def launch(
    work: Work,
    *,
    args: Mapping[str, object] | None = None,
    name: str = "",
    runs: str = "runs",
    namespace: str = "",
    backend: str = "auto",
    image: str = "",
    nodes: int = 1,
    min_nodes: int = 0,
    processes: int = 0,
    cpu: str = "1",
    memory: str = "4Gi",
    gpus: int = 0,
    gpu_resource: str = "nvidia.com/gpu",
    shared_memory: str = "1Gi",
    env: Mapping[str, str] | None = None,
    volumes: Sequence[str] = (),
    s3_endpoint: str = "",
    s3_secret: str = "",
    node_selector: Mapping[str, str] | None = None,
    tolerations: Sequence[Mapping[str, Any]] = (),
    service_account: str = "",
    pull_policy: str = "IfNotPresent",
    pull_secrets: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    patch: Mapping[str, Any] | None = None,
    queue: str = "",
    runtime: str = "torch-distributed",
    scheduling: Mapping[str, Any] | None = None,
    preflight: str = "enforce",
    success: str = "all",
    restart: str = "Never",
    max_restarts: int = 3,
    keep: str = "never",
    logs: str = "all",
    deadlines: Mapping[str, float] | None = None,
) -> Handle:
    """Run a function or a script as the ranks of one process group, and return at once with a handle on it.

    Each rank calls the function and joins the group with `ddpipe.distributed.process_group` or torch itself.
    Rank 0's return value and the files that it leaves in the folder $DDPIPE_OUTPUTS come back through the
    handle. The launch survives a restart of the kernel: `ddpipe.attach` finds it by its name.

    Args:
        work: A function, which ships the variables and helpers that it uses; or the path of a script.
        args: The function's arguments by name; a script gets them as `--name value`.
        name: Name of the launch, to attach to it later; a name is used once (default: the function's name
            and the time).
        runs: URI of the folder for the call and its result. Pods must reach it: s3://bucket/prefix, or a path
            on a volume that they mount. Anyone who can write to it can replace what the pods read, except for
            the call and the result, which are verified.
        namespace: Namespace of the job (default: that of the kubeconfig or the pod).
        backend: "local" runs the ranks as processes of this machine; all options except nodes and processes
            are then rejected. "pytorchjob", "trainjob" and "indexedjob" choose the kind of job, "auto" takes
            the first that the cluster has and the account may use.
        image: Container image of the pods. It needs ddpipe, and for a function the Python version of this
            process.
        nodes: Number of pods; all of them must fit on the cluster before the first rank starts.
        min_nodes: Smallest number of pods to start with, or to continue with after losing some. The function
            then starts again and has to resume from its own checkpoint; 0 means that all pods are needed.
        processes: Ranks per pod; 0 means one per GPU, or one if there is none.
        cpu: CPUs per pod, requested and limited; also the number of threads that torch shares among the
            pod's ranks.
        memory: Memory per pod, requested and limited; a pod that exceeds it is killed.
        gpus: GPUs per pod; without any, ranks communicate over gloo.
        gpu_resource: Resource name of a GPU, as registered by the device plugin.
        shared_memory: Size limit of /dev/shm, used by data loader workers; it counts towards `memory`.
        env: Environment variables of the pods. Anyone who may read pods in the namespace sees them; for
            passwords, mount a Secret with `volumes`.
        volumes: Volumes to mount into every pod, each as "KIND:NAME:/PATH[:ro]": "claim:data:/data".
        s3_endpoint: Object store as host:port, as seen from the cluster (default: Kubeflow's own).
        s3_secret: Secret with the object store's accesskey and secretkey; empty means none.
        node_selector: Node labels that the pods require; without a matching node the launch fails.
        tolerations: Tolerations of the pods, as in a pod spec, for nodes reserved by a taint.
        service_account: Service account of the pods (default: the namespace's).
        pull_policy: When to pull the image: "IfNotPresent", "Always" (after pushing to the same tag) or
            "Never".
        pull_secrets: Secrets for the image registry.
        labels: Labels of the job and its pods.
        annotations: Annotations of the job and its pods.
        patch: Strategic merge patch for the pod template, for anything that has no option.
        queue: Kueue queue that admits the job; while the job is queued, no deadline expires.
        runtime: Training runtime of a TrainJob.
        scheduling: The operator's schedulingPolicy, for gang scheduling.
        preflight: "enforce" rejects a job that cannot run, "autoscaling" does so without looking at nodes,
            for clusters that add some; "warn" logs why and creates it anyway.
        success: "all": the job succeeds if all pods do; "rank0": the other pods' failures are ignored.
        restart: When to restart failed pods: "Never", "OnFailure", "Always" or "ExitCode". A restarted rank
            calls the function again from its beginning.
        max_restarts: Maximum number of restarts; the next failure fails the job.
        keep: Which finished jobs stay on the cluster to be examined: "never", "failed" or "always".
        logs: Ranks whose logs the handle shows: "first", "all", or numbers such as "0,5-7".
        deadlines: Deadlines in seconds by stage, such as {"scheduled": 7200, "finished": 36000}.

    Raises:
        ParameterError: The function cannot be shipped, an option is wrong, or the name is taken.
        StoreError: The folder cannot be written to.
    """
    given = locals()
    own = {"work", "args", "name", "runs", "namespace"}
    options = {key: value for key, value in given.items() if key not in own and value is not None}
    from ddpipe.notebook import handle  # noqa: PLC0415 - most processes do not need it

    return handle.launch(work, options, args=args or {}, name=name, runs=runs, namespace=namespace)


def attach(name: str, runs: str = "runs", *, key: str = "") -> Handle:
    """Return the handle of an earlier launch, also in another kernel or on another machine.

    If its launcher is gone, a new one adopts the job; no job is created.

    Args:
        name: Name of the launch.
        runs: The same folder as for the launch.
        key: The `key` of the first handle, needed on another machine to open the result: it proves that the
            job wrote it, and is kept on the machine of the launch only.

    Raises:
        ParameterError: There is no such launch.
        StoreError: The folder cannot be read.
    """
    from ddpipe.notebook import handle  # noqa: PLC0415 - as above

    return handle.attach(name, runs, key=key)


def load_model(uri: str | PathLike[str]) -> Model:
    """Load the model of a package; its `predict` answers for image files. It needs no torch.

    Args:
        uri: The package that `ddpipe export` made: a folder, or s3://bucket/prefix.

    Raises:
        NoSuchObject: There is no finished package.
        CorruptObject: A file of it was changed.
        ParameterError: It is of another version of ddpipe.
    """
    from ddpipe.serve import model  # noqa: PLC0415 - as above

    return model.load_model(uri)
