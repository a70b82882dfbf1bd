"""The package for KFP v2, run by a real Kubeflow Pipelines backend from our own images.

KFP_ENDPOINT       the backend's API, such as http://127.0.0.1:8888; without it all of this is skipped
S3_ENDPOINT        the cluster's MinIO as this machine reaches it (pods: minio-service.kubeflow:9000)
POD_HOST           this machine's address as pods reach it, for the run whose object store is elsewhere
DDPIPE_TEST_CIFAR  a tar of <train|test>/<class>/<image>, for the run on photographs
DDPIPE_TEST_OWN_IMAGE  the image of examples/accelerate, for the run of somebody's own script
DDPIPE_TEST_IMAGES our images, {} for launcher and trainer; default: ddpipe-{}:dev
"""

import base64
import io
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
import s3_server
from kfp import Client
from kfp_run import NAMESPACE, Run, connected, package_with_test_images, remove_experiment
from nbclient import NotebookClient
from PIL import Image
from place import OUR_IMAGES, Place, a_place, delete, eventually, missing_image
from sklearn.datasets import load_digits
from uploads import KAGGLE, upload_photographs, upload_xrays

from ddpipe.data.manifest import load_manifest
from ddpipe.errors import DdpipeError
from ddpipe.kube.api import ApiServer
from ddpipe.pipelines.compile import COMPILED, PIPELINES
from ddpipe.serve.deploy import MODEL
from ddpipe.serve.rollout import DEPLOYMENTS
from ddpipe.storage import open_store, read_uri

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

SMALL = {"nodes": 2, "cpu": "400m", "memory": "2Gi", "epochs": 3, "step_memory": "2Gi"}
NEVER_ENDING = {**SMALL, "nodes": 1, "epochs": 100_000}
ODD = """Käthe's "Bilder" """.strip()

Submit = Callable[..., Run]


@pytest.fixture(scope="module")
def client() -> Client:
    return connected()


@pytest.fixture(scope="module")
def experiment(client: Client) -> Iterator[str]:
    made = client.create_experiment(f"ddpipe-test-{uuid.uuid4().hex[:8]}").experiment_id
    yield made
    client.delete_experiment(made)


@pytest.fixture(scope="module")
def start(
    client: Client, admin: ApiServer, experiment: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Submit]:
    """Starts a run of one of the packages, with parameters as the command line names them."""
    folder = tmp_path_factory.mktemp("packages")
    runs = []

    def started(package: str, runs_folder: str = "", **parameters: object) -> Run:
        pipeline = PIPELINES[package]
        file = package_with_test_images(COMPILED / f"{pipeline.name}.yaml", folder)
        made = client.create_run_from_pipeline_package(
            file, pipeline.filled(parameters), experiment_id=experiment
        )
        runs.append(Run(client, admin, made.run_id, f"{runs_folder}/{made.run_id}"))
        return runs[-1]

    yield started
    for run in runs:
        run.remove()


@pytest.fixture
def submit(start: Submit, root: str) -> Submit:
    """Starts a run of the training package."""

    def submitted(**parameters: object) -> Run:
        arguments = {**SMALL, "runs": f"{root}/runs", "store": f"{root}/store", **parameters}
        return start("training", arguments["runs"], **arguments)

    return submitted


def upload_digits(uri: str) -> int:
    """Twenty pictures of each digit, one folder per class."""
    store, digits = open_store(uri), load_digits()
    for digit in range(10):
        for number, pixels in enumerate(digits.images[digits.target == digit][:20]):
            file = io.BytesIO()
            Image.fromarray((pixels * 15).astype("uint8")).save(file, "PNG")
            store.write(f"{digit}/{number}.png", file.getvalue())
    return 200


def test_two_pods_train_from_a_folder_whose_name_needs_quoting(submit: Submit, root: str) -> None:
    count = upload_digits(f"{root}/{ODD}")
    run = submit(source="folder", source_path=f"{root}/{ODD}", dataset_name="odd")
    assert run.ended() == "SUCCEEDED", run.failure()
    training = json.loads(read_uri(f"{run.folder}/training/training.json"))
    assert training["world_size"] == 2
    dataset = json.loads(read_uri(f"{run.folder}/steps/prepare.json"))["facts"]["dataset"]
    assert sum(split.count for split in load_manifest(dataset).splits.values()) == count
    assert read_uri(f"{run.folder}/model/model.onnx")
    assert run.jobs() == []


def test_second_run_on_unchanged_data_reuses_the_model(submit: Submit) -> None:
    one, other = (ended_well(submit(nodes=1, epochs=1)) for _ in range(2))
    earlier = one.folder.rpartition("/")[2]
    for step in ("train", "evaluate", "export"):
        assert json.loads(read_uri(f"{other.folder}/steps/{step}.json"))["facts"]["same_as"] == earlier
    assert "nothing changed since run" in other.log("train")
    assert read_uri(f"{other.folder}/report.html")


def ended_well(run: Run) -> Run:
    assert run.ended() == "SUCCEEDED", run.failure()
    return run


def test_two_pods_train_on_photographs(submit: Submit, root: str) -> None:
    if "DDPIPE_TEST_CIFAR" not in os.environ:
        pytest.skip("no photographs: set DDPIPE_TEST_CIFAR")
    upload_photographs(Path(os.environ["DDPIPE_TEST_CIFAR"]), f"{root}/cifar", per_class=200)
    run = submit(source="folder", source_path=f"{root}/cifar", dataset_name="cifar", epochs=1)
    assert run.ended() == "SUCCEEDED", run.failure()
    assert json.loads(read_uri(f"{run.folder}/training/training.json"))["world_size"] == 2


def test_two_pods_train_on_xrays_with_several_labels_each(submit: Submit, root: str, tmp_path: Path) -> None:
    upload_xrays(tmp_path, f"{root}/xrays")
    run = submit(
        source="csv",
        source_path=f"{root}/xrays",
        **KAGGLE,
        dataset_name="xrays",
        batch_size=16,
        epochs=10,
        learning_rate=0.1,
    )
    assert run.ended() == "SUCCEEDED", run.failure()
    assert json.loads(read_uri(f"{run.folder}/training/training.json"))["world_size"] == 2
    scores = json.loads(read_uri(f"{run.folder}/evaluation/metrics.json"))["scores"]
    assert scores["macro_auc"]["value"] > 0.6


def test_a_gated_run_deploys_a_better_model_only(start: Submit, admin: ApiServer, root: str) -> None:
    service = f"ddpipe-test-{uuid.uuid4().hex[:8]}"
    deployed = {"service": service, "kserve": "no", "serve_cpu": "200m", "serve_memory": "512Mi"}
    given = {**SMALL, **deployed, "gate_model": "toys", "runs": f"{root}/gated", "store": f"{root}/store"}
    path, models = DEPLOYMENTS.path(NAMESPACE, service), []
    try:
        for epochs, decision, later in ((6, "promote", "SUCCEEDED"), (1, "keep", None)):
            sizes = {"model": "digits-cnn", "nodes": 1, "epochs": epochs}
            run = ended_well(start("training-gated", given["runs"], **{**given, **sizes}))
            facts = json.loads(read_uri(f"{run.folder}/steps/gate.json"))["facts"]
            assert facts["decision"] == decision
            assert [run.states().get(step) for step in ("export", "deploy")] == [later] * 2
            deployment = admin.get(path)
            models.append(deployment["metadata"]["annotations"][MODEL])
            assert deployment["status"]["readyReplicas"] == 1
    finally:
        delete(admin, path)
        delete(admin, f"/api/v1/namespaces/{NAMESPACE}/services/{service}")
    assert models[0] == models[1]


def test_failed_job_fails_the_run_with_its_cause_in_the_log(submit: Submit) -> None:
    """The launcher's image has no torch: training cannot start in it."""
    run = submit(image=OUR_IMAGES.format("launcher"), nodes=1)
    assert run.ended() == "FAILED", run.failure()
    assert "No module named 'torch'" in run.log("train"), run.failure()
    assert run.jobs() == []


def test_a_parameter_of_a_later_step_is_refused_by_the_first(submit: Submit) -> None:
    run = submit(model="nonsense")
    assert run.ended() == "FAILED", run.failure()
    assert "nonsense" in run.log("prepare"), run.failure()
    assert run.states()["train"] == "None"  # it never began


def test_a_terminated_run_leaves_no_job(client: Client, submit: Submit) -> None:
    run = submit(**NEVER_ENDING)
    assert eventually(lambda: has_trained(run), bool), run.failure()
    client.terminate_run(run.id)
    assert run.ended() in {"FAILED", "CANCELED"}
    assert run.jobs() == []


def test_any_command_on_two_pods_shows_the_lines_of_both(start: Submit) -> None:
    arguments = {"image": OUR_IMAGES.format("launcher"), "nodes": 2, "cpu": "100m", "memory": "128Mi"}
    command = ["python", "-c", f"import os; print({ODD!r}, 'of rank', os.environ['RANK'])"]
    run = start("custom-job", command=command, **arguments)
    assert run.ended() == "SUCCEEDED", run.failure()
    log = run.log("pytorch-job")
    assert all(f"{ODD} of rank {rank}" in log for rank in (0, 1)), log
    assert run.jobs() == []


def test_an_accelerate_script_of_somebody_s_own_trains_on_two_pods(start: Submit, admin: ApiServer) -> None:
    image = os.environ.get("DDPIPE_TEST_OWN_IMAGE")
    if not image:
        pytest.skip("no image: build examples/accelerate and name it by DDPIPE_TEST_OWN_IMAGE")
    if missing := missing_image(admin, image):
        pytest.skip(missing)
    size = {"nodes": 2, "cpu": "300m", "memory": "1Gi"}
    run = start("custom-job", image=image, command=["torchrun", "train.py", "--epochs", "3"], **size)
    assert run.ended() == "SUCCEEDED", run.failure()
    log = run.log("pytorch-job")
    assert "[worker-0] 2 processes, bf16" in log, log
    reported = re.findall(r"\[worker-0\] epoch=(\d) loss=\S+ accuracy=(\S+)", log)
    assert [epoch for epoch, _ in reported] == ["1", "2", "3"]
    assert float(reported[-1][1]) > 0.8
    assert run.jobs() == []


def test_a_run_without_a_secret_of_keys_says_that_it_has_none(submit: Submit) -> None:
    run = submit(s3_secret="there-is-none")  # noqa: S106 - a name
    assert run.ended() == "FAILED", run.failure()
    assert "Check AWS_ACCESS_KEY_ID" in run.log("prepare"), run.failure()


def test_the_notebook_trains_on_two_pods_and_leaves_one_schedule(
    client: Client, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, _, tag = OUR_IMAGES.partition("ddpipe-{}:")
    monkeypatch.setenv("DDPIPE_REGISTRY", registry.rstrip("/") or "docker.io/library")
    monkeypatch.setenv("DDPIPE_TAG", tag)
    notebook = nbformat.read(COMPILED.parent / "training.ipynb", as_version=4)
    place = next(number for number, cell in enumerate(notebook.cells) if "cluster = {" in cell.source) + 1
    changes = {**SMALL, "runs": f"{root}/notebook", "store": f"{root}/store"}
    cell = nbformat.v4.new_code_cell(f"cluster |= {changes!r}")
    notebook.cells.insert(place, cell)
    try:
        NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()
        experiment = client.get_experiment(experiment_name="notebook").experiment_id
        made = client.list_recurring_runs(experiment_id=experiment).recurring_runs
        assert [schedule.display_name for schedule in made] == ["nightly"]
        shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        assert f"{root}/notebook/" in str(shown)
    finally:
        remove_experiment(client, "notebook")


def has_trained(run: Run) -> bool:
    """Whether training has written something."""
    try:
        return any(True for _ in open_store(f"{run.folder}/training").list())
    except DdpipeError:
        return False


@pytest.fixture
def elsewhere(admin: ApiServer, tmp_path: Path) -> Iterator[tuple[s3_server.Server, str]]:
    """Another object store: other service, port, namespace and keys; and its address for pods."""
    if "POD_HOST" not in os.environ:
        pytest.skip("no object store elsewhere: set POD_HOST to this machine's address as pods reach it")
    with s3_server.running("0.0.0.0") as server, a_place(admin, tmp_path) as place:  # noqa: S104 - pods come from outside
        server.reset()
        yield server, expose(place, int(server.endpoint.rpartition(":")[2]))


def expose(place: Place, port: int) -> str:
    """A service of the place that leads to this machine's port; its address."""
    service = {"metadata": {"name": "store"}, "spec": {"ports": [{"port": 9900, "targetPort": port}]}}
    place.create("/api/v1/services", service)
    place.create(
        "/apis/discovery.k8s.io/v1/endpointslices",
        {
            "metadata": {"name": "store", "labels": {"kubernetes.io/service-name": "store"}},
            "addressType": "IPv4",
            "ports": [{"port": port}],
            "endpoints": [{"addresses": [os.environ["POD_HOST"]]}],
        },
    )
    return f"store.{place.namespace}:9900"


@pytest.fixture
def secret(admin: ApiServer) -> Iterator[str]:
    """The keys of the store that is elsewhere, in the namespace of the runs."""
    secrets, name = f"/api/v1/namespaces/{NAMESPACE}/secrets", f"ddpipe-test-{uuid.uuid4().hex[:8]}"
    keys = zip(("accesskey", "secretkey"), s3_server.CREDENTIALS.values(), strict=True)
    data = {key: base64.b64encode(value.encode()).decode() for key, value in keys}
    admin.create(secrets, {"metadata": {"name": name}, "data": data})
    yield name
    delete(admin, f"{secrets}/{name}")


def test_all_steps_reach_an_object_store_elsewhere(
    submit: Submit, elsewhere: tuple[s3_server.Server, str], secret: str
) -> None:
    server, endpoint = elsewhere
    bucket = f"s3://{s3_server.BUCKET}"
    run = submit(
        runs=f"{bucket}/runs", store=f"{bucket}/store", s3_endpoint=endpoint, s3_secret=secret, nodes=1
    )
    assert run.ended() == "SUCCEEDED", run.failure()
    there = {item.object_name for item in server.client.list_objects(s3_server.BUCKET, recursive=True)}
    assert {f"runs/{run.id}/model/model.onnx", f"runs/{run.id}/report.html"} <= there
