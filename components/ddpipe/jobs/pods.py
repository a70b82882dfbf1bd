"""The pod of a training job: the same template for every kind of job. Pure functions."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddpipe.errors import ParameterError
from ddpipe.jobs import JOB_VARIABLE
from ddpipe.jobs.job import TrainingJob, labels_of
from ddpipe.jobs.options import Volume, VolumeKind, s3_environment
from ddpipe.kube.capacity import quantity
from ddpipe.kube.resources import SNAPSHOTS

_USER = 1000
# Kubernetes marks a lost node after 40 s; by default its pods are given up 300 s later.
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOST_SECONDS = 60
# The launcher ends a job that lasts too long, and must be the first to do so.
_SPARE_SECONDS = 600
_LABEL = 63


def template(job: TrainingJob, container: str, env: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The pod template of `job`, with its patch applied."""
    # A sidecar never ends, so neither would the pod; and it intercepts gloo's and NCCL's ports.
    annotations = {"sidecar.istio.io/inject": "false", **job.annotations}
    labels = {"sidecar.istio.io/inject": "false", **labels_of(job)}
    plain = {"metadata": {"labels": labels, "annotations": annotations}, "spec": _spec(job, container, env)}
    patched: dict[str, Any] = merged(plain, job.patch)
    names = [item["name"] for item in patched["spec"]["containers"]]
    if container not in names:
        raise ParameterError(
            what="the patch removes the container that trains",
            which="containers of the pod template",
            seen=f"there are {', '.join(names) or 'none'}, and none of them is {container}",
            do=f"Keep the container {container}.",
        )
    return patched


def ranks(job: TrainingJob, address: str, port: int, index: str) -> list[dict[str, Any]]:
    """The rank of a pod and where rank 0 is: for torchrun (PET_*) and for scripts without it."""
    values = {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(port),
        "WORLD_SIZE": str(job.nodes * job.processes_per_pod),
    }
    own = {"fieldRef": {"fieldPath": index}}
    return [
        *({"name": name, "value": value} for name, value in values.items()),
        *({"name": name, "valueFrom": own} for name in ("RANK", "PET_NODE_RANK")),
    ]


def group(job: TrainingJob) -> list[dict[str, Any]]:
    """The size of the group, for torchrun."""
    values = {"PET_NNODES": str(job.nodes), "PET_NPROC_PER_NODE": str(job.processes_per_pod)}
    return [{"name": name, "value": value} for name, value in values.items()]


def _spec(job: TrainingJob, container: str, env: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    # When a kubelet ends a pod that no launcher has ended; a pod may wait for the others to start.
    limits = job.limits
    starting = limits.scheduled + limits.pulled + limits.running
    longest = math.ceil(starting + (limits.finished or 0) + limits.outage) + _SPARE_SECONDS
    optional = {
        "nodeSelector": dict(job.node_selector),
        "tolerations": _tolerations(job),
        "activeDeadlineSeconds": longest if limits.finished else None,
        "serviceAccountName": job.service_account,
        "imagePullSecrets": [{"name": name} for name in job.pull_secrets],
    }
    # Data loaders pass batches through /dev/shm; a container's own has 64 MiB.
    memory = {"medium": "Memory", "sizeLimit": job.shared_memory}
    # One for each object, however many paths it is mounted at.
    volumes = {volume["name"]: volume for volume in map(_volume, job.mounts)}.values()
    return {
        "containers": [_container(job, container, env)],
        "volumes": [{"name": "shm", "emptyDir": memory}, *volumes],
        "automountServiceAccountToken": bool(job.service_account),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **{name: value for name, value in optional.items() if value},
    }


def _tolerations(job: TrainingJob) -> list[dict[str, Any]]:
    """The job's own, and that of a lost node; what tolerates everything includes that."""
    own = [dict(toleration) for toleration in job.tolerations]
    named = {toleration.get("key") for toleration in own}
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_SECONDS}
    return [*own, *({"key": key, **lost} for key in _LOST if named.isdisjoint({key, None}))]


def _container(job: TrainingJob, name: str, env: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "image": job.image,
        "imagePullPolicy": job.pull_policy,
        **({"command": [_literal(word) for word in job.command]} if job.command else {}),
        "env": _environment(job, env),
        "resources": {"limits": job.per_pod, "requests": job.per_pod},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *map(_mount, job.mounts)],  # noqa: S108
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _environment(job: TrainingJob, env: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Defaults, then the kind of job's, then S3's, then the user's: the last of one name wins."""
    entries = [
        {"name": "OMP_NUM_THREADS", "value": str(threads(job))},
        # The user id has no entry in the image's passwd file.
        {"name": "HOME", "value": "/tmp"},  # noqa: S108 - a container's own
        {"name": "LOGNAME", "value": "ddpipe"},
        # torchrun copies the first failing process's error to here.
        {"name": "TORCHELASTIC_ERROR_FILE", "value": "/dev/termination-log"},
        # The training records them: its model can be traced.
        {"name": "DDPIPE_RUN", "value": job.owner.run_id},
        {"name": JOB_VARIABLE, "value": job.name},
        {"name": "DDPIPE_IMAGE", "value": job.image},
        *_data(job.mounts),
        *map(dict, (*env, *job.unhashed)),
        *s3_environment(job.s3_secret, job.s3_endpoint),
        *({"name": name, "value": _literal(value)} for name, value in sorted(job.env.items())),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": job.name, "key": name}}}
            for name in job.hidden
        ),
    ]
    return list({entry["name"]: entry for entry in entries}.values())


def _literal(text: str) -> str:
    """Text that a container gets as it is: the kubelet makes $ of $$, and a variable's value of $(NAME)."""
    return re.sub(r"\$(?=[$(])", "$$", text)


def _data(mounts: Sequence[Volume]) -> list[dict[str, Any]]:
    """The volumes that data may come from, for the lineage."""
    kinds = {VolumeKind.CLAIM, VolumeKind.SNAPSHOT}
    names = [f"{mount.kind.value} {mount.name} at {mount.path}" for mount in mounts if mount.kind in kinds]
    return [{"name": "DDPIPE_VOLUMES", "value": ", ".join(names)}] if names else []


def threads(job: TrainingJob) -> int:
    """CPU threads per process, from the CPU limit: more would only be throttled."""
    return max(1, int(quantity(job.cpu) / job.processes_per_pod))


def _volume(volume: Volume) -> dict[str, Any]:
    # A claim that is made with each pod from the snapshot, and goes with the pod.
    copy = {
        "accessModes": ["ReadWriteOnce"],
        "dataSource": {"apiGroup": SNAPSHOTS.group, "kind": SNAPSHOTS.kind, "name": volume.name},
        "resources": {"requests": {"storage": volume.size}},
    }
    source: dict[VolumeKind, dict[str, Any]] = {
        VolumeKind.CLAIM: {"persistentVolumeClaim": {"claimName": volume.name}},
        VolumeKind.SECRET: {"secret": {"secretName": volume.name}},
        VolumeKind.CONFIG: {"configMap": {"name": volume.name}},
        VolumeKind.SNAPSHOT: {"ephemeral": {"volumeClaimTemplate": {"spec": copy}}},
    }
    return {"name": _volume_name(volume), **source[volume.kind]}


def _mount(volume: Volume) -> dict[str, Any]:
    read_only = volume.read_only or volume.kind in {VolumeKind.SECRET, VolumeKind.CONFIG}
    return {"name": _volume_name(volume), "mountPath": volume.path, "readOnly": read_only}


def _volume_name(volume: Volume) -> str:
    """A DNS-1123 label, as volumes need, unique for each volume; a name that is not a label gets a digest."""
    name = f"{volume.kind.value}-{volume.name}"
    if len(name) <= _LABEL and "." not in name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name.replace('.', '-')[: _LABEL - 9].rstrip('-')}-{digest}"


# The field that identifies an item of a list, by the list's own name; other lists are replaced as a whole.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}
# Lists whose items are replaced as a whole: a variable must not have its old value and a new source.
_WHOLE = {"env"}


def merged(base: Any, patch: Any, field: str = "") -> Any:  # noqa: ANN401 - any JSON value
    """`base` with `patch` applied: objects merge, null deletes, lists of named items merge by name."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        kept = {name: value for name, value in base.items() if name not in patch}
        changed = {
            name: merged(base.get(name), value, name) for name, value in patch.items() if value is not None
        }
        return {**kept, **changed}
    if isinstance(base, list) and isinstance(patch, list) and field in MERGE_KEYS:
        return _merged_lists(base, patch, field)
    return patch


def _merged_lists(base: list[Any], patch: list[Any], field: str) -> list[Any]:
    key = MERGE_KEYS[field]
    changes = {_named(item, key, field): item for item in patch}
    names = {item[key] for item in base}
    pairs = [(item, changes.get(item[key], {})) for item in base]
    kept = [change if change and field in _WHOLE else merged(item, change) for item, change in pairs]
    added = [item for name, item in changes.items() if name not in names]
    deleted = {name for name, item in changes.items() if item.get("$patch") == "delete"}
    return [item for item in [*kept, *added] if item[key] not in deleted]


def _named(item: Any, key: str, field: str) -> Any:  # noqa: ANN401
    if isinstance(item, Mapping) and key in item:
        return item[key]
    raise ParameterError(
        what="the patch cannot be applied",
        which=f"{field} of the pod template",
        seen=f"{item!r} has no {key}, so it is unclear which item it changes",
        do=f"Give each item of {field} its {key}.",
    )
