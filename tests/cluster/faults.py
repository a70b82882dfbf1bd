"""The fault matrix: what goes wrong, done to a real launcher on a real cluster, and what must be seen then.

python tests/cluster/faults.py          print every message of the matrix as a table
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from place import IMAGE, Place, delete, eventually, strategic_patch
from proxy import Request
from step import RUNNING, Ended, Step, launch

from ddpipe.jobs.job import Owner, TrainingJob
from ddpipe.jobs.status import condition
from ddpipe.kube.cluster import spec_schema

OK, INTERRUPTED = 0, 143
JOB_NAME = Owner(pipeline="ddpipe", run_id="r1", step="train").job_name


@dataclass(frozen=True)
class Seen:
    """What a fault led to."""

    ended: Ended
    jobs: int
    pods: int
    jobs_ever: int


@dataclass(frozen=True)
class Fault:
    """One row of the matrix.

    Attributes:
        name: What goes wrong.
        act: Does it, and gives the end of the (last) launcher.
        code: The exit code that must be seen.
        words: Patterns that its output must show.
        jobs: Jobs that must be left.
        pods: Pods that must be left.
        jobs_ever: Jobs that may ever have existed; None for any number.
        may_be_killed: Whether SIGKILL may come before the process has ended by itself: half a second is short
            on a busy machine. What it has to do before is seen in what is left.
        level: Pod Security level of the namespace.
        sees_nodes: Whether the launcher may list nodes.
        unlike: What is different, by backend.
        unplayable: Why it cannot happen, by backend.
        playable_with: A field of the job's spec; where the cluster's release knows it, it can happen.
        reports: Public reports that it repeats.
        is_alike: Whether it is between the launcher and the API server, so that no kind of job changes it.
    """

    name: str
    act: Callable[[Place], Ended]
    code: int = OK
    words: tuple[str, ...] = ()
    jobs: int = 0
    pods: int = 0
    jobs_ever: int | None = 1
    may_be_killed: bool = False
    level: str = "restricted"
    sees_nodes: bool = False
    unlike: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unplayable: Mapping[str, str] = field(default_factory=dict)
    playable_with: str = ""
    reports: str = ""
    is_alike: bool = False

    def on(self, backend: str) -> Fault:
        """The row as it is for this backend."""
        return replace(self, **self.unlike.get(backend, {}))

    def happen(self, place: Place) -> Seen:
        """Let it happen, and count what is left once that has come to rest."""
        ended = self.act(place)
        jobs = eventually(lambda: len(place.jobs()), lambda count: count == self.jobs)
        pods = eventually(lambda: len(place.pods()), lambda count: count == self.pods)
        return Seen(ended, jobs, pods, place.jobs_ever())


FAULTS: list[Fault] = []


def fault(name: str, **expected: object) -> Callable[[Callable[[Place], Ended]], Callable[[Place], Ended]]:
    """Put a function into the matrix."""

    def enter(act: Callable[[Place], Ended]) -> Callable[[Place], Ended]:
        FAULTS.append(Fault(name, act, **expected))  # type: ignore[arg-type]
        return act

    return enter


alike = partial(fault, is_alike=True)


# --- the launcher dies ----------------------------------------------------------------------------

BRIEF = "echo begun; sleep 1; echo done"
LONG = "echo begun; sleep 100"
SOON = ("--deadlines", "hopeless=3")
SHORT_OUTAGE = ("--deadlines", "outage=4")


def held(
    place: Place, which: Callable[[Request], bool], *, answered: bool = False, script: str = BRIEF
) -> Step:
    """A launcher that has come to just this request."""
    hold = place.proxy.hold(which, answered=answered)
    step = launch(place, script)
    assert hold.reached.wait(180), step.text
    hold.drop = True
    return step


def lists_job(request: Request) -> bool:
    return request.watches_job


POINTS: dict[str, Callable[[Place], Step]] = {
    "before create": lambda place: held(place, lambda request: request.creates_job),
    "while the create is answered": lambda place: held(
        place, lambda request: request.creates_job, answered=True
    ),
    "before the first watch event": lambda place: held(place, lists_job),
    "while running": lambda place: running(place, "sleep 4"),
    "after the end, before it concludes": lambda place: held(place, lambda request: request.deletes_job),
}


def running(place: Place, script: str = LONG, *options: str, **environment: str) -> Step:
    step = launch(place, script, *options, **environment)
    if place.rival:
        assert eventually(lambda: count_running(place), lambda count: count == 2) == 2, step.text
    else:
        step.saw(RUNNING)
    return step


def count_running(place: Place) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in place.pods())


def killed_and_run_again(point: Callable[[Place], Step]) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        point(place).kill()
        return launch(place, BRIEF if point is not POINTS["while running"] else "sleep 4").end()

    return act


def terminated(point: Callable[[Place], Step]) -> Callable[[Place], Ended]:
    return lambda place: point(place).terminate()


def terminated_unheard(point: Callable[[Place], Step]) -> Callable[[Place], Ended]:
    def act(place: Place) -> Ended:
        step = point(place)
        step.stop_listening()
        return step.terminate()

    return act


for _when, _point in POINTS.items():
    _created = 0 if _when == "before create" else 1
    fault(f"SIGKILL {_when}, then run again")(killed_and_run_again(_point))
    _interrupted = {"code": INTERRUPTED, "jobs_ever": _created, "may_be_killed": True}
    fault(f"SIGTERM {_when}, SIGKILL 0.5 s later", **_interrupted)(terminated(_point))
    fault(f"SIGTERM {_when}, output closed before", **_interrupted)(terminated_unheard(_point))


@fault("the launcher's own pod is deleted", code=INTERRUPTED, jobs=1, pods=2)
def evicted(place: Place) -> Ended:
    step = running(place, **in_a_pod_of_a_run(place, finalizers=["ddpipe.dev/test"]))
    delete(place.admin, own_pod(place), gracePeriodSeconds=0)
    ended = step.terminate(grace=10)
    place.patch(own_pod(place), {"metadata": {"finalizers": None}})
    return ended


@fault("the launcher's own pod is deleted by force", code=INTERRUPTED, jobs=1, pods=2)
def evicted_by_force(place: Place) -> Ended:
    step = running(place, **in_a_pod_of_a_run(place))
    delete(place.admin, own_pod(place), gracePeriodSeconds=0)
    return step.terminate(grace=10)


def evict_as_a_kubelet(place: Place) -> None:
    """What a kubelet writes that is short of memory: no deletion time, only a condition."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    place.patch(f"{own_pod(place)}/status", {"status": {"conditions": [condition]}})


@fault("the launcher's own pod is evicted by its kubelet", code=INTERRUPTED, jobs=1, pods=2)
def evicted_by_kubelet(place: Place) -> Ended:
    step = running(place, **in_a_pod_of_a_run(place))
    evict_as_a_kubelet(place)
    return step.terminate(grace=10)


BAR = "i=0; while [ $i -lt 40000 ]; do printf '\\r%5d of 40000 |######             |' $i; i=$((i+1)); done"
BAR_BYTES = 40_000 * 30


@fault(
    "SIGTERM after 40,000 states of a progress bar, SIGKILL 0.5 s later", code=INTERRUPTED, may_be_killed=True
)
def terminated_at_a_bar(place: Place) -> Ended:
    step = running(place, f"{BAR}; sleep 100")
    path = f"/api/v1/namespaces/{place.namespace}/pods/{place.pod('worker-0')['metadata']['name']}/log"
    assert eventually(lambda: log_size(place, path), lambda size: size > BAR_BYTES) > BAR_BYTES
    return step.terminate()


def log_size(place: Place, path: str) -> int:
    return sum(map(len, place.admin.pieces(path, {"limitBytes": str(2 * BAR_BYTES)}, 10)))


@fault(
    "run again while the pods of a deleted job are still going",
    words=("pods of an earlier attempt",),
    jobs_ever=2,
)
def run_again_at_once(place: Place) -> Ended:
    running(place, "trap 'sleep 15; exit' TERM; sleep 100 & wait").terminate()
    return launch(place, BRIEF).end()


def own_pod(place: Place) -> str:
    return f"/api/v1/namespaces/{place.namespace}/pods/step"


def in_a_pod_of_a_run(place: Place, **metadata: object) -> dict[str, str]:
    """As `in_a_pod`, for a pod that belongs to a run which outlives it."""
    config_map = {"apiVersion": "v1", "kind": "ConfigMap"}
    run = place.create("/api/v1/configmaps", {**config_map, "metadata": {"name": "run"}})
    owner = {**config_map, "name": "run", "uid": run["metadata"]["uid"], "controller": True}
    return in_a_pod(place, ownerReferences=[owner], **metadata)


def in_a_pod(place: Place, **metadata: object) -> dict[str, str]:
    """A pod that stands for the launcher's own; it ends when its container has slept enough."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    place.create(
        "/api/v1/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "step", **metadata},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 0,
                "securityContext": {
                    "runAsNonRoot": True,
                    "runAsUser": 1000,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["sleep", "100"],
                        "securityContext": security,
                    }
                ],
            },
        },
    )
    return {"POD_NAME": "step", "POD_NAMESPACE": place.namespace}


@fault("two launchers with one identity at once")
def two_at_once(place: Place) -> Ended:
    first, second = launch(place, "sleep 3"), launch(place, "sleep 3")
    return max(first.end(), second.end(), key=lambda ended: abs(ended.code))


@fault(
    "the name is taken by a stranger's job",
    code=45,
    words=("name is taken", "did not create"),
    jobs=1,
    pods=2,
)
def name_taken(place: Place) -> Ended:
    stranger(place, JOB_NAME)
    return launch(place, BRIEF).end()


def stranger(place: Place, name: str) -> None:
    """Somebody else's job, with the very labels that ours has."""
    labels = {
        "app.kubernetes.io/managed-by": "ddpipe",
        "ddpipe.dev/pipeline": "ddpipe",
        "ddpipe.dev/job": name,
    }
    job = TrainingJob(
        owner=Owner(run_id="theirs"),
        namespace=place.namespace,
        image=IMAGE,
        nodes=2,
        command=("sleep", "60"),
        cpu="50m",
        memory="64Mi",
        shared_memory="16Mi",
        runtime="TrainingRuntime/ddpipe",
    )
    kind = place.kind
    body = kind.manifest(job, spec_schema(place.admin, kind.resource))
    place.admin.create(place.jobs_path(), {**body, "metadata": {"name": name, "labels": labels}})


# --- the API server is away -----------------------------------------------------------------------


@alike("connections refused for 60 s while following", words=("API server is away", "answers again"))
def refused(place: Place) -> Ended:
    step = running(place, "sleep 20")
    with place.proxy.refusing():
        time.sleep(60)
    return step.end()


@alike("the API server hangs for 60 s while following")
def hanging(place: Place) -> Ended:
    step = running(place, "sleep 20")
    with place.proxy.hanging():
        time.sleep(60)
    return step.end()


@alike("watches and logs dropped", words=("answers again",))
def dropped(place: Place) -> Ended:
    step = running(place, "sleep 5")
    place.proxy.drop_streams()
    return step.end()


@alike("410 Gone for a watch")
def gone(place: Place) -> Ended:
    place.proxy.answer(lambda request: request.is_watch, 410, "too old resource version", times=6)
    return launch(place, "sleep 3").end()


@alike(
    "the token expires (401) and is rotated on disk",
    reports="airflow 32718, 31648",
    words=("401", "answers again"),
)
def rotated(place: Place) -> Ended:
    step = _expired(place)
    fresh = place.token_file.with_suffix(".fresh")
    fresh.write_text(place.new_token())
    fresh.replace(place.token_file)
    return step.end()


@alike("the token expires (401), and its file is empty for a while", words=("401", "answers again"))
def emptied(place: Place) -> Ended:
    step = _expired(place)
    place.token_file.write_text("")
    time.sleep(3)
    place.token_file.write_text(place.new_token())
    return step.end()


def _expired(place: Place) -> Step:
    step = running(place, "sleep 12")
    expired = place.token_file.read_text()
    place.proxy.answer(lambda request: expired in request.token, 401, "Unauthorized", times=10_000)
    place.proxy.drop_streams()
    step.saw("401")
    return step


FORBIDDEN = 'pods is forbidden: User "launcher" cannot watch resource "pods"'


@alike(
    "the right to follow is taken away (403)",
    code=42,
    words=("the API server refuses, waiting: HTTP 403", "this account lacks a right", "images/rbac.yaml"),
)
def forbidden(place: Place) -> Ended:
    step = running(place, LONG, *SOON)
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}/roles/ddpipe-launcher"
    rules = [rule for rule in place.admin.get(role)["rules"] if rule["resources"] != ["pods"]]
    place.patch(role, {"rules": rules})
    assert not eventually(lambda: place.may("", "pods", "watch"), lambda may: not may)
    place.proxy.drop_streams()
    return step.end()


@alike(
    "403 for a moment, as from a server that has just started", words=("refuses, waiting", "answers again")
)
def forbidden_briefly(place: Place) -> Ended:
    step = running(place, "sleep 6")
    place.proxy.answer(lambda request: "/pods?" in request.path, 403, FORBIDDEN, times=3)
    place.proxy.drop_streams()
    return step.end()


@alike("a burst of 429")
def too_many(place: Place) -> Ended:
    place.proxy.answer(lambda _: True, 429, "too many requests, please try again later", times=25)
    return launch(place, BRIEF).end()


@alike("a burst of 500")
def internal(place: Place) -> Ended:
    step = running(place, "sleep 6")
    place.proxy.answer(lambda _: True, 500, "etcdserver: leader changed", times=20)
    place.proxy.drop_streams()
    return step.end()


@alike("a third of all requests is answered with 429 for 6 s")
def flaky(place: Place) -> Ended:
    step = launch(place, "sleep 8")
    with place.proxy.flaky(0.3):
        time.sleep(6)
    return step.end()


@alike("the store of events is away for longer than an outage may last", words=("continuing without them",))
def without_events(place: Place) -> Ended:
    place.proxy.answer(lambda request: "/events?" in request.path, 503, "etcdserver: no leader", times=10_000)
    return launch(place, "sleep 8", "--deadlines", "outage=3").end()


@alike("a proxy answers watches with a page of HTML and status 200")
def pages_for_watches(place: Place) -> Ended:
    place.proxy.answer_with(lambda request: request.is_watch, b"<html>\nplease log in\n</html>\n", times=6)
    return launch(place, "sleep 3").end()


@alike("the API server stays away", code=41, words=("does not answer", "run the step again"), jobs=1, pods=2)
def away_for_good(place: Place) -> Ended:
    step = running(place, LONG, *SHORT_OUTAGE)
    with place.proxy.refusing():
        return step.end()


@alike("log streams cut again and again", words=())
def logs_cut(place: Place) -> Ended:
    place.proxy.cut_logs_every(0.7)
    script = 'i=0; while [ $i -lt 300 ]; do echo "line $i"; i=$((i+1)); [ $((i % 5)) = 0 ] && sleep 0.1; done'
    ended = launch(place, script).end()
    for rank in ("worker-0", "worker-1"):
        numbers = [int(number) for number in re.findall(rf"\[{rank}\] line (\d+)\n", ended.text)]
        assert numbers == list(range(300)), numbers
    return ended


# The second run takes a while: the kubelet deletes the first one's log when it ends.
_SECOND = "sleep 60; seq 51 100"
_FIRST = "touch /dev/shm/again; seq 1 50; sleep 5; exit 1"
RESTARTING = f"if [ -e /dev/shm/again ]; then {_SECOND}; else {_FIRST}; fi"


@fault("containers restart: their logs continue", words=("restarts",))
def restarting(place: Place) -> Ended:
    return with_all_lines(launch(place, RESTARTING, "--restart", "OnFailure"))


def with_all_lines(step: Step) -> Ended:
    """The end of a launcher that must print the lines of both runs, in their order."""
    ended = step.end()
    for rank in ("worker-0", "worker-1"):
        numbers = [int(number) for number in re.findall(rf"\[{rank}\] (\d+)\n", ended.text)]
        assert numbers == list(range(1, 101)), ended.text
    return ended


@alike("logs are opened late, when their containers run again: the logs of both runs are there")
def restarted_unseen(place: Place) -> Ended:
    # What is opened as the first run's log is the second one's, which writes nothing for a while.
    hold = place.proxy.hold(lambda request: request.is_log and "follow" in request.path)
    step = launch(place, RESTARTING, "--restart", "OnFailure")
    assert hold.reached.wait(180), step.text
    assert eventually(lambda: restarts(place), lambda counts: counts == [1, 1]) == [1, 1]
    hold.released.set()
    return with_all_lines(step)


@fault("containers restart again and again: no line of a log comes twice", words=(r"\] run 3\n",))
def restarting_often(place: Place) -> Ended:
    count = "n=$(cat /dev/shm/n 2>/dev/null || echo 0); echo $((n + 1)) > /dev/shm/n"
    script = f'{count}; echo "run $n"; [ $n -ge 3 ] || exit 1'
    options = ("--restart", "OnFailure", "--max-restarts", "20")
    first = launch(place, script, *options)
    first.saw(r"created \w*Job")
    first.kill()
    # The next attempt finds containers of which the kubelet has thrown away the first log.
    assert eventually(lambda: restarts(place), lambda counts: len(counts) == 2 and min(counts) >= 2)
    ended = launch(place, script, *options).end()
    for name in ("worker-0", "worker-1"):
        runs = re.findall(rf"\[{name}\] run (\d)\n", ended.text)
        assert len(set(runs)) == len(runs), ended.text
    return ended


def restarts(place: Place) -> list[int]:
    states = [pod["status"].get("containerStatuses") for pod in place.pods()]
    return [state[0]["restartCount"] if state else 0 for state in states]


@fault("a replica fails, is started again and succeeds", words=("restarts",))
def restarted_once(place: Place) -> Ended:
    script = "if [ -e /dev/shm/again ]; then sleep 1; else touch /dev/shm/again; exit 1; fi"
    return launch(place, script, "--restart", "OnFailure").end()


# --- training fails -------------------------------------------------------------------------------


def rank(number: int, failing: str, other: str = "sleep 60") -> str:
    return f'if [ "$RANK" = {number} ]; then echo about to fail; {failing}; else {other}; fi'


def fails(script: str, *options: str) -> Callable[[Place], Ended]:
    return lambda place: launch(place, script, *options).end()


fault("a worker exits 1", code=48, words=(r"worker-1 of", "exit code 1", "about to fail"))(
    fails(rank(1, "exit 1"))
)
fault("rank 0 exits 1", code=48, words=(r"worker-0 of", "exit code 1"))(fails(rank(0, "exit 1")))
fault("a worker is killed by a signal", code=48, words=("worker-1 of", "SIGKILL", "137"))(
    fails(rank(1, "python -c 'import os; os.kill(os.getpid(), 9)'; exit $?"))
)
fault("a worker fails after rank 0 has succeeded", code=48, words=("worker-1 of", "exit code 3"))(
    fails(rank(1, "sleep 3; exit 3", "exit 0"))
)
fault(
    "out of memory",
    reports="prefect 9647, argo-workflows 13373",
    code=48,
    words=("worker-1 of", "out of memory", "OOMKilled", "64Mi"),
)(fails(rank(1, "exec python -c 'x = bytearray(2**28)'")))
fault("the output is not there", code=51, words=("left no result", "/nowhere/model"))(
    fails("true", "--outputs", "/nowhere/model")
)


@fault(
    "a worker is gone after its master has succeeded",
    unplayable=dict.fromkeys(("trainjob", "indexedjob"), "it has no master whose success ends the job"),
    code=48,
    words=("worker-0 of", "its pod was deleted|seen to succeed"),
    pods=0,
    level="baseline",
)
def worker_gone(place: Place) -> Ended:
    # An operator whose jobs have a master: one whose CRD knows no elastic policy.
    old = {"pytorchReplicaSpecs": {}, "runPolicy": {}, "nprocPerNode": {}}
    schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": old}}}}
    crd = {"spec": {"versions": [{"name": "v1", "schema": schema}]}}
    place.proxy.show(lambda request: "customresourcedefinitions" in request.path, crd)
    step = launch(place, rank(0, "exit 0", "sleep 100").replace("about to fail", "done"))
    path = place.jobs_path(JOB_NAME)
    assert eventually(lambda: len(place.jobs()), bool), step.text
    assert eventually(lambda: condition(place.admin.get(path), "Succeeded"), bool), step.text
    worker = f"/api/v1/namespaces/{place.namespace}/pods/{JOB_NAME}-worker-0"
    delete(place.admin, worker, gracePeriodSeconds=0)
    return step.end()


@fault(
    "the job cannot be removed after its success",
    words=("could not be removed: HTTP 500", "the cluster itself does so"),
    unlike={"trainjob": {"words": ("could not be removed: HTTP 500", "do so later: ddpipe jobs clean-up")}},
    jobs=1,
    pods=2,
)
def undeletable(place: Place) -> Ended:
    place.proxy.answer(lambda request: request.deletes_job, 500, "etcdserver: no leader", times=10_000)
    return launch(place, BRIEF, *SHORT_OUTAGE).end()


@fault(
    "the job cannot be removed after its failure: the cause comes first",
    code=48,
    words=("exit code 1.*could not be removed: HTTP 429",),
    jobs=1,
    pods=1,
)
def undeletable_failure(place: Place) -> Ended:
    place.proxy.answer(lambda request: request.deletes_job, 429, "too many requests", times=10_000)
    return launch(place, rank(1, "exit 1"), *SHORT_OUTAGE).end()


@fault("failed, and kept for looking at", code=48, jobs=1, pods=1)
def kept(place: Place) -> Ended:
    return launch(place, rank(1, "exit 1", "exec sleep 60"), "--keep", "failed").end()


# --- pods cannot start ----------------------------------------------------------------------------


@fault(
    "an image that cannot be pulled",
    reports="torchx 207, kuberay 1990, prefect 10500",
    code=47,
    words=("cannot be pulled", "nowhere.invalid/none:1"),
)
def no_image(place: Place) -> Ended:
    return launch(place, BRIEF, "--image", "nowhere.invalid/none:1", *SOON).end()


class _Away(BaseHTTPRequestHandler):
    """A registry that is away."""

    def do_GET(self) -> None:
        self.send_error(503, "Service Unavailable")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None: ...


@fault("a registry answers 503 for a while", words=("503",))
def registry_away(place: Place) -> Ended:
    """Three times as long as an image may be missing that does not exist; another image is the recovery."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Away) as registry:
        threading.Thread(target=registry.serve_forever, daemon=True).start()
        image = f"127.0.0.1:{registry.server_address[1]}/none:1"
        step = launch(place, BRIEF, "--image", image, *SOON)
        step.saw("503")
        time.sleep(9)
        for pod in place.pods():
            container = {"name": pod["spec"]["containers"][0]["name"], "image": IMAGE}
            path = f"/api/v1/namespaces/{place.namespace}/pods/{pod['metadata']['name']}"
            strategic_patch(place.admin, path, {"spec": {"containers": [container]}})
        ended = step.end()
        registry.shutdown()
    return ended


@fault("a command that does not exist", code=48, words=("cannot be started", "no-such-command"))
def bad_command(place: Place) -> Ended:
    arguments = [
        "launch",
        *place.chosen(()),
        "--image",
        IMAGE,
        "--run-id",
        "r1",
        "--cpu",
        "50m",
        "--memory",
        "64Mi",
        "--",
        "no-such-command",
    ]
    return Step(place, arguments, {}).end()


@fault("a missing secret as a volume", code=52, words=("does not exist", '"nope" not found'))
def missing_secret(place: Place) -> Ended:
    return launch(place, BRIEF, "--volumes", "secret:nope:/secret", *SOON).end()


_SECRET = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "nope", "key": "key"}}}
NEEDS_A_SECRET = (
    "--patch",
    json.dumps({"spec": {"containers": [{"name": "pytorch", "env": [_SECRET]}]}}),
)


@fault(
    "a missing secret in the environment", code=52, words=("CreateContainerConfigError", '"nope" not found')
)
def missing_credentials(place: Place) -> Ended:
    return launch(place, BRIEF, *NEEDS_A_SECRET, *SOON).end()


@fault("a missing claim", code=44, words=("PersistentVolumeClaim nope does not exist",), jobs_ever=0)
def missing_claim(place: Place) -> Ended:
    return launch(place, BRIEF, "--volumes", "claim:nope:/data").end()


@fault(
    "a volume snapshot that is not there, on a cluster that may know of none",
    code=44,
    words=(r"1 problem:\n.*(this cluster has no volume snapshots|VolumeSnapshot nope in .* does not exist)",),
    jobs_ever=0,
)
def missing_snapshot(place: Place) -> Ended:
    return launch(place, BRIEF, "--volumes", "snapshot:nope:/data:1Gi").end()


# One that no cluster has: GPUs are for those who need them.
GPU = ("--gpus", "1", "--gpu-resource", "ddpipe.dev/gpu")


@fault(
    "a GPU that no node has",
    code=44,
    words=("no node can ever", "of ddpipe.dev/gpu requested"),
    sees_nodes=True,
    jobs_ever=0,
)
def no_gpu(place: Place) -> Ended:
    return launch(place, BRIEF, *GPU).end()


@fault("a GPU that no node has, nodes unseen", code=46, words=("Insufficient ddpipe.dev/gpu", "scheduled"))
def no_gpu_unseen(place: Place) -> Ended:
    return launch(place, BRIEF, *GPU, "--deadlines", "scheduled=10").end()


@contextlib.contextmanager
def a_node(place: Place, *taints: dict[str, str], **allocatable: str) -> Iterator[tuple[str, ...]]:
    """An object that looks like a node to a preflight; gives the options of a job that asks for it."""
    name, key = f"{place.namespace}-node", "ddpipe.dev/test"
    apart = {"key": key, "value": place.namespace, "effect": "NoExecute"}
    metadata = {"name": name, "labels": {key: place.namespace}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [apart, *taints]}}
    place.admin.create("/api/v1/nodes", node)
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "10", **allocatable}
    try:
        place.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": amounts, "allocatable": amounts}})
        own = json.dumps({"key": key, "operator": "Exists"})
        yield ("--node-selector", f"{key}={place.namespace}", "--tolerations", own)
    finally:
        delete(place.admin, f"/api/v1/nodes/{name}")


@fault(
    "GPU nodes exist, all of them tainted",
    code=44,
    words=(
        "nodes with example.com/gpu exist, but all have a taint",
        "example.com/gpu=present:NoSchedule",
        'give a toleration, such as {"key": "example.com/gpu"',
    ),
    sees_nodes=True,
    jobs_ever=0,
)
def tainted(place: Place) -> Ended:
    taint = {"key": "example.com/gpu", "value": "present", "effect": "NoSchedule"}
    with a_node(place, taint, **{"example.com/gpu": "8"}) as options:
        return launch(place, BRIEF, *options, "--gpus", "1", "--gpu-resource", "example.com/gpu").end()


@fault(
    "pods that fit one by one, but not together",
    code=44,
    words=("can take 1 of the job's 2 pods at the same time", "has 2 of cpu free"),
    sees_nodes=True,
    jobs_ever=0,
)
def not_together(place: Place) -> Ended:
    with a_node(place) as options:
        return launch(place, BRIEF, *options, "--cpu", "1100m").end()


@fault(
    "more CPUs than there are, nodes unseen: the shortage is reported while waiting",
    code=46,
    words=(r"\[launch\] waiting for nodes: 2 of 2 pods \(worker-[01]: Unschedulable: .*Insufficient cpu",),
)
def waiting(place: Place) -> Ended:
    return launch(place, BRIEF, "--cpu", "10000", "--deadlines", "scheduled=10").end()


def limit_pods(place: Place, pods: int, **spec: object) -> None:
    place.create(
        "/api/v1/resourcequotas",
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "small"},
            "spec": {"hard": {"pods": str(pods)}, **spec},
        },
    )
    path = f"/api/v1/namespaces/{place.namespace}/resourcequotas/small"
    assert eventually(lambda: place.admin.get(path)["status"].get("hard"), bool)


@fault("quota exceeded", code=44, words=("quota small", "leaves 1 of pods", "needs 2"), jobs_ever=0)
def over_quota(place: Place) -> Ended:
    limit_pods(place, 1)
    return launch(place, BRIEF).end()


@fault("a quota that is for other pods")
def quota_of_others(place: Place) -> Ended:
    limit_pods(place, 0, scopes=["BestEffort"])
    return launch(place, BRIEF).end()


@fault(
    "quota exceeded, with --preflight warn",
    reports="prefect 5133",
    code=52,
    words=(r"\[launch\] quota small .*leaves 1 of pods", "rejects the job's pods"),
)
def over_quota_on(place: Place) -> Ended:
    limit_pods(place, 1)
    return launch(place, LONG, "--preflight", "warn", *SOON).end()


@fault("quota taken away after the preflight", code=52, words=("rejects the job's pods", "exceeded quota"))
def quota_later(place: Place) -> Ended:
    hold = place.proxy.hold(lambda request: request.creates_job)
    step = launch(place, LONG, *SOON)
    assert hold.reached.wait(180), step.text
    limit_pods(place, 1)
    hold.released.set()
    return step.end()


@fault(
    "pods that the cluster's policy refuses",
    code=52,
    words=("violates PodSecurity", "privileged"),
    unplayable={"trainjob": "before Trainer 2.2 a TrainJob has no place for a security context"},
    playable_with="runtimePatches",
)
def against_policy(place: Place) -> Ended:
    security = {"privileged": True, "allowPrivilegeEscalation": True}
    patch = {"spec": {"containers": [{"name": "pytorch", "securityContext": security}]}}
    return launch(place, BRIEF, "--patch", json.dumps(patch), *SOON).end()


@fault(
    "a job that the webhook refuses",
    code=44,
    words=("image: Required value",),
    unlike={"trainjob": {"words": ("must not have reserved envs",)}},
    jobs_ever=0,
)
def webhook_refuses(place: Place) -> Ended:
    no_image = {"spec": {"containers": [{"name": "pytorch", "image": ""}]}}
    if place.backend == "trainjob":
        return launch(place, BRIEF, "--env", "PET_NNODES=1").end()
    return launch(place, BRIEF, "--patch", json.dumps(no_image)).end()


@fault(
    "no such jobs on the cluster", code=43, words=(r"has no \w*Jobs", "or use another cluster"), jobs_ever=0
)
def not_installed(place: Place) -> Ended:
    root = place.kind.resource.root
    place.proxy.answer(lambda request: request.path == root, 404, "not found", times=1)
    return launch(place, BRIEF).end()


@fault(
    "rights missing", code=44, words=("may not", r'resources: \["pods/log"\]', "verbs: .delete"), jobs_ever=0
)
def no_rights(place: Place) -> Ended:
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{place.namespace}/roles/ddpipe-launcher"
    rules = [
        {
            "apiGroups": [place.kind.resource.group],
            "resources": [place.kind.resource.plural],
            "verbs": ["create", "get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    place.patch(role, {"rules": rules})
    assert not eventually(lambda: place.may("", "pods/log", "get"), lambda may: not may)
    return launch(place, BRIEF).end()


# --- somebody meddles -----------------------------------------------------------------------------


@fault("the job is deleted while it runs", code=50, words=("was deleted while it was followed",))
def deleted(place: Place) -> Ended:
    step = running(place)
    # As kubectl does it: asked for nothing, the API would let a Job's pods live on.
    delete(place.admin, place.jobs_path(JOB_NAME), propagationPolicy="Background")
    return step.end()


SLEEPER = "trap 'exit 143' TERM; sleep 15 & wait $!"


def delete_pod(place: Place, rank: str) -> None:
    name = place.pod(rank)["metadata"]["name"]
    delete(place.admin, f"/api/v1/namespaces/{place.namespace}/pods/{name}")


@fault("a pod is deleted while it runs", code=48, words=("worker-1 of", "its pod was deleted"))
def pod_deleted(place: Place) -> Ended:
    step = running(place, SLEEPER)
    delete_pod(place, "worker-1")
    return step.end()


@fault(
    "a pod is deleted while it runs, and may be replaced",
    reports="jobset 574, dagster 6236",
    words=("worker-1 is replaced: its pod was deleted",),
)
def pod_replaced(place: Place) -> Ended:
    step = running(place, SLEEPER, "--restart", "ExitCode")
    delete_pod(place, "worker-1")
    return step.end()


@fault("a pod is evicted while it runs", code=48, words=("worker-1 of", "removed", "EvictionByEvictionAPI"))
def pod_evicted(place: Place) -> Ended:
    step = running(place, SLEEPER)
    # With a master, which ours has not, the second pod is worker-0.
    name = place.pod(f"worker-{0 if place.rival else 1}")["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": place.namespace},
    }
    place.admin.create(f"/api/v1/namespaces/{place.namespace}/pods/{name}/eviction", eviction)
    return step.end()


@fault(
    "somebody scales the job to one pod",
    reports="trainer 1509, 1593",
    unplayable={"trainjob": "its number of pods cannot be changed while it runs"},
    code=48,
    words=("somebody changed the number of its pods from 2 to 1",),
)
def scaled_down(place: Place) -> Ended:
    step = running(place, rank(1, "sleep 100", "sleep 8; exit 0").replace("about to fail", "begun"))
    one: dict[str, Any] = {"completions": 1, "parallelism": 1}
    if place.backend == "pytorchjob":
        one = {"pytorchReplicaSpecs": {"Worker": {"replicas": 1}}}
    place.patch(place.jobs_path(JOB_NAME), {"spec": one})
    return step.end()


fault("a pod fails again and again, and is replaced", code=48, words=("worker-1 of", "exit code 255"))(
    fails(rank(1, "exit 255"), "--restart", "ExitCode", "--max-restarts", "1")
)


def other_container(script: str) -> dict[str, Any]:
    """Another container of a pod."""
    limits = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "other", "image": IMAGE, "command": ["sh", "-c", script], "securityContext": limits}
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "50m", "memory": "32Mi"}}
    return {**container, "resources": resources}


def beside(kind: str, script: str) -> tuple[str, ...]:
    """The option for another container in the pods."""
    return ("--patch", json.dumps({"spec": {kind: [other_container(script)]}}))


NO_CONTAINERS = {"trainjob": "its overrides add no containers; a webhook adds them below"}
fault(
    "a sidecar never ends",
    words=("has ended, other of its pod runs on",),
    unplayable=NO_CONTAINERS,
    reports="airflow 39625, 39693",
)(fails(BRIEF, *beside("containers", "sleep 1000")))
fault(
    "a rank fails beside a sidecar that never ends",
    code=48,
    words=("worker-1 of", "exit code 3"),
    unplayable=NO_CONTAINERS,
)(fails(rank(1, "exit 3"), *beside("containers", "sleep 1000")))
fault("a sidecar fails", code=48, words=("its container other: exit code 3",), unplayable=NO_CONTAINERS)(
    fails("sleep 4", *beside("containers", "sleep 1; exit 3"))
)
fault(
    "an init container fails",
    code=48,
    words=("its container other: exit code 4", "nothing to fetch"),
    unplayable=NO_CONTAINERS,
)(fails(BRIEF, *beside("initContainers", "echo nothing to fetch; exit 4")))
_KEY = {"name": "key", "configMap": {"name": "kube-root-ca.crt", "items": [{"key": "nope", "path": "nope"}]}}
_MOUNT = {"name": "pytorch", "volumeMounts": [{"name": "key", "mountPath": "/key"}]}
fault("a volume names a key that does not exist", code=52, words=("FailedMount", "references non-existent"))(
    fails(BRIEF, "--patch", json.dumps({"spec": {"volumes": [_KEY], "containers": [_MOUNT]}}), *SOON)
)
fault("values with dollar signs arrive as they are given", words=(r"] right: pa\$\$word \$\(HOME\)",))(
    fails('echo "right: $A"', "--env", "A=pa$$word $(HOME)")
)


_LARGE = [option for number in range(16) for option in ("--env", f"V{number}={'x' * 100_000}")]
fault(
    "an object that the cluster cannot store",
    reports="argo-workflows 1186, 2936, 4065, flyte 363",
    code=44,
    words=("more than the 1.5", "V9"),
    jobs_ever=0,
)(fails(BRIEF, *_LARGE))
fault(
    "the same, with --preflight warn",
    code=52,
    words=("HTTP 500 etcdserver: request is too large. Put large values into",),
    jobs_ever=0,
    # For a Job the API server tries again, and finds that the labels of its first attempt do not fit.
    unlike={"indexedjob": {"words": ("more than the 1.5", "the cluster rejected the request")}},
)(fails(BRIEF, *_LARGE, "--preflight", "warn"))
_WRONG = '{"tolerations": [{"key": "a", "operator": "Often"}]}'
fault(
    "pods that the API refuses: a wrong operator",
    reports="trainer 707, 2363",
    code=44,
    words=("Often",),
    jobs_ever=0,
)(fails(BRIEF, "--patch", f'{{"spec": {_WRONG}}}'))


@fault(
    "somebody asks for no pods",
    code=53,
    words=("somebody changed the number of its pods from 2 to 0", "it asks for 0 of 2 pods"),
    unplayable=dict.fromkeys(("trainjob", "pytorchjob"), "it has no parallelism"),
)
def none_wanted(place: Place) -> Ended:
    step = running(place, LONG, "--deadlines", "scheduled=3")
    place.patch(place.jobs_path(JOB_NAME), {"spec": {"parallelism": 0}})
    return step.end()


@alike("the login plugin of the kubeconfig fails", code=41, words=("login plugin", "no ticket"), jobs_ever=0)
def plugin_fails(place: Place) -> Ended:
    config = json.loads(place.kubeconfig.read_text())
    plugin = {"command": "sh", "args": ["-c", "echo no ticket >&2; exit 7"]}
    kind = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    config["users"][0]["user"] = {"exec": {**kind, **plugin}}
    place.kubeconfig.write_text(json.dumps(config))
    return launch(place, BRIEF).end()


@alike("the kubeconfig names another server", code=41, words=("https://127.0.0.1:9", "refused"), jobs_ever=0)
def wrong_server(place: Place) -> Ended:
    config = json.loads(place.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:9"}
    place.kubeconfig.write_text(json.dumps(config))
    return launch(place, BRIEF).end()


@fault("the launcher's clock is an hour ahead, and it adopts", words=("adopted",))
def clock_ahead(place: Place) -> Ended:
    limit = ("--deadlines", "finished=600")
    running(place, "sleep 10", *limit).kill()
    ahead = place.kubeconfig.parent / "ahead"
    ahead.mkdir()
    code = "import time\n_now = time.time\ntime.time = lambda: _now() + 3600\n"
    (ahead / "sitecustomize.py").write_text(code)
    return launch(place, "sleep 10", *limit, PYTHONPATH=str(ahead)).end()


@fault(
    "suspended, then resumed: the clock stands still",
    reports="kueue 1146, 2923, trainer 2239",
    words=("suspended",),
)
def suspended(place: Place) -> Ended:
    # Longer than a busy machine takes to run the pods; the time for which nothing happens is longer still.
    limits = ("--deadlines", "finished=120", "--deadlines", "scheduled=120")
    # They end at a time of day: the first pods not before they are suspended, the second ones soon after.
    step = running(place, f"while [ $(date +%s) -lt {time.time() + 170:.0f} ]; do sleep 1; done", *limits)
    suspend(place, whether=True)
    assert eventually(lambda: condition(place.admin.get(place.jobs_path(JOB_NAME)), "Suspended"), bool)
    pods = f"/api/v1/namespaces/{place.namespace}/pods"
    assert not eventually(lambda: place.admin.get(pods)["items"], lambda items: not items)
    # From now on nothing happens that could be heard of.
    time.sleep(121)
    suspend(place, whether=False)
    return step.end()


def suspend(place: Place, *, whether: bool) -> None:
    change = {"suspend": whether}
    spec = {"runPolicy": change} if place.backend == "pytorchjob" else change
    place.patch(place.jobs_path(JOB_NAME), {"spec": spec})


# --- deadlines ------------------------------------------------------------------------------------


@fault("images are not there in time", code=49, words=("not all images", "nowhere.invalid", "pulled"))
def late_images(place: Place) -> Ended:
    return launch(place, BRIEF, "--image", "nowhere.invalid/none:1", "--deadlines", "pulled=4").end()


@fault("containers do not start in time", code=49, words=("not all containers", "nope", "running"))
def late_containers(place: Place) -> Ended:
    return launch(place, BRIEF, *NEEDS_A_SECRET, "--deadlines", "running=4").end()


@fault("training does not end in time", code=49, words=("did not end in time", "still running after 4 s"))
def late_end(place: Place) -> Ended:
    return launch(place, LONG, "--deadlines", "finished=4").end()


@alike("no rank prints a line any more", code=49, words=("seems to hang", "no rank printed a line for 8 s"))
def no_more_lines(place: Place) -> Ended:
    """While one prints, as long as it wants, nothing ends."""
    lines = "for line in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $line; sleep 1; done; sleep 100"
    ended = launch(place, lines, "--deadlines", "silence=8").end()
    assert "] 12" in ended.text
    return ended


@fault("a limit continues when its launcher is killed and run again", code=49, words=("did not end in time",))
def limit_continues(place: Place) -> Ended:
    limit = ("--deadlines", "finished=40")
    step = running(place, LONG, *limit)
    time.sleep(25)
    step.kill()
    ended = launch(place, LONG, *limit).end()
    assert ended.seconds < 40, "it began again"
    return ended


# --- the second line of defence -------------------------------------------------------------------


@fault(
    "killed for good, its run over: the next launch sweeps",
    words=(r"removed \w*Job", "run r1 is over"),
    jobs=1,
    pods=2,
    jobs_ever=3,
)
def swept(place: Place) -> Ended:
    killed_with_its_run(place)
    stranger(place, "strangers")
    return launch(place, BRIEF, run="r2").end()


def killed_with_its_run(place: Place) -> None:
    """Leave a running job whose launcher is killed and whose run is over."""
    running(place, LONG, **in_a_pod(place)).kill()
    path = f"/api/v1/namespaces/{place.namespace}/pods/step"
    place.patch(path, {"spec": {"activeDeadlineSeconds": 1}})
    phase = eventually(lambda: place.admin.get(path)["status"]["phase"], lambda one: one == "Failed")
    assert phase == "Failed"


@fault(
    "a sweep that cannot delete",
    code=54,
    words=("not all jobs whose run is over could be removed: 1 of 1", "HTTP 500", "ddpipe jobs clean-up"),
    jobs=1,
    pods=2,
)
def sweep_refused(place: Place) -> Ended:
    killed_with_its_run(place)
    place.proxy.answer(lambda request: request.deletes_job, 500, "etcdserver: no leader", times=10_000)
    return Step(place, ["jobs", "clean-up"], {}).end()


@fault("killed for good, its run deleted: the cluster collects", code=-9)
def collected(place: Place) -> Ended:
    step = running(place, LONG, **in_a_pod(place))
    ended = step.kill()
    delete(place.admin, f"/api/v1/namespaces/{place.namespace}/pods/step", gracePeriodSeconds=0)
    return ended
