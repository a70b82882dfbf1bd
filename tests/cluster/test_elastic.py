"""Digits, trained by pods whose number changes on the way: scaled, or because one is lost.

What comes out are the parameters of a training that nothing happened to: the global batches are the same for
any number of pods.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from place import Place, a_place, delete, eventually
from step import Ended, Step
from stored import latest
from test_training import ddpipe, train

from ddpipe.__main__ import cli
from ddpipe.jobs import BACKENDS
from ddpipe.kube.api import ApiServer
from ddpipe.storage import open_store
from ddpipe.train.recipe import AT_FIRST

pytestmark = pytest.mark.cluster

EPOCHS = 20
SIZE = ("--epochs", str(EPOCHS), "--cpu", "250m")
SAME = (
    "--recipe",
    json.dumps({**AT_FIRST, "sync_batch_norm": True, "precision": "fp32", "learning_rate": 2e-5}),
)
"""By which the number of pods makes no difference but rounding, which a low learning rate keeps small."""


@pytest.fixture(scope="module")
def environment(s3_environment: dict[str, str]) -> Iterator[dict[str, str]]:
    """The object store, for this process too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment.items():
            patch.setenv(name, value)
        yield s3_environment


@pytest.fixture(scope="module")
def digits(environment: dict[str, str]) -> tuple[str, str]:
    store = f"s3://{environment['S3_BUCKET']}/test-{uuid.uuid4().hex[:8]}"
    facts = ddpipe(environment, "prepare", "--source", "digits", "--store", store)
    return str(facts["dataset"]), f"{store}/runs"


def started(place: Place, environment: dict[str, str], digits: tuple[str, str], *options: str) -> Step:
    """A training by two pods, in a run of its own, that has come some way."""
    run = ("--run", place.namespace)
    step = train(place, environment, digits, *place.chosen(()), *SIZE, *SAME, *run, *options)
    step.saw("epoch=2/")
    return step


def parameters(runs: str, place: Place) -> dict[str, torch.Tensor]:
    """What the training of a place has learned."""
    checkpoint = latest(open_store(f"{runs}/{place.namespace}/training"))
    assert checkpoint
    model: dict[str, torch.Tensor] = checkpoint.states["model"]
    return model


@pytest.fixture(scope="module")
def undisturbed(
    admin: ApiServer,
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    digits: tuple[str, str],
) -> dict[str, torch.Tensor]:
    """What two pods learn that nothing happens to."""
    with a_place(admin, tmp_path_factory.mktemp("undisturbed")) as place:
        ended = started(place, environment, digits).end()
        assert ended.code == 0, ended.text
        return parameters(digits[1], place)


def check(
    place: Place, ended: Ended, learned: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> None:
    """It is a training like any other: every epoch, the same parameters, and nothing left behind."""
    assert ended.code == 0, ended.text
    # The epoch before the last checkpoint that was written may have been printed already.
    epochs = dict.fromkeys(map(int, re.findall(r"epoch=(\d+)", ended.text)))
    assert list(epochs) == list(range(1, EPOCHS + 1))
    assert place.jobs() == []
    assert eventually(place.pods, lambda pods: not pods) == []
    # Rounding makes 3e-6 at most in 20 epochs (28 trainings by one to four ranks, seven seeds), a lost update
    # in the third epoch 3e-5. At 25 times the rate, rounding makes about as much as a lost update.
    assert (flat(learned) - flat(expected)).norm() < 1e-5 * flat(expected).norm()


def flat(model: dict[str, torch.Tensor]) -> torch.Tensor:
    """All parameters in one row."""
    return torch.cat([model[name].flatten() for name in sorted(model)])


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_training_is_scaled_from_two_pods_to_three(
    admin: ApiServer,
    tmp_path: Path,
    environment: dict[str, str],
    digits: tuple[str, str],
    undisturbed: dict[str, torch.Tensor],
    backend: str,
) -> None:
    with a_place(admin, tmp_path, backend=backend) as place:
        step = started(place, environment, digits)
        (job,) = place.jobs()
        name = job["metadata"]["name"]
        done = CliRunner().invoke(cli, ["jobs", "scale", name, "--nodes", "3", "-n", place.namespace])
        assert done.exit_code == 0, done.output
        ended = step.end()
        check(place, ended, parameters(digits[1], place), undisturbed)
    kind = f"{place.kind.resource.kind} {place.namespace}/{name}"
    assert f"[launch] scaled, nodes from 2 to 3: removing {kind} to create it again" in ended.text
    assert f"[launch] created {kind} (nodes=3)" in ended.text
    assert re.findall(r"processes: (\d)", ended.text) == ["2", "3"]


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_training_that_loses_a_pod_continues_with_the_other(
    admin: ApiServer,
    tmp_path: Path,
    environment: dict[str, str],
    digits: tuple[str, str],
    undisturbed: dict[str, torch.Tensor],
    backend: str,
) -> None:
    with a_place(admin, tmp_path, backend=backend) as place:
        step = started(place, environment, digits, "--min-nodes", "1")
        gone = place.pod("worker-1")["metadata"]["name"]
        delete(admin, f"/api/v1/namespaces/{place.namespace}/pods/{gone}", gracePeriodSeconds=0)
        ended = step.end()
        check(place, ended, parameters(digits[1], place), undisturbed)
    assert "[launch] worker-1 was lost: its pod was deleted" in ended.text
    assert re.findall(r"processes: (\d)", ended.text) == ["2", "1"]
