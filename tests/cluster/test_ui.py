"""Kubeflow Pipelines' own page, in a headless Chromium: upload, form, runs on pods, graph, reports.

KFP_UI    where the page is, such as http://127.0.0.1:3000; without it all of this is skipped
PICTURES  a folder for pictures of what was seen: `make pictures` puts them into docs/
KFP_ENDPOINT and the rest: as test_kfp.py says.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from kfp_run import Run, connected, package_with_test_images, remove_experiment, remove_pipeline
from playwright.sync_api import FloatRect, Page, expect, sync_playwright
from uploads import upload_tiles

from ddpipe.kube.api import ApiServer
from ddpipe.parameters import OneOf
from ddpipe.pipelines.compile import COMPILED
from ddpipe.pipelines.training import TRAINING
from ddpipe.storage import read_uri

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

PATIENCE = 30_000
"""Milliseconds until the page has done what it was asked."""

FORM, RUN = {"width": 860, "height": 2660}, {"width": 1400, "height": 760}
PARAMETERS: FloatRect = {"x": 225, "y": 845, "width": 635, "height": 1160}
"""The part of the form with ddpipe's fields for the cluster, the data and the storage."""

TYPED = {"cluster_nodes": "2", "cluster_cpu": "500m", "cluster_memory": "2Gi", "cluster_step_memory": "2Gi"}
TITLE = "digits on two pods"


@dataclass(frozen=True)
class Ui:
    """The page in a browser.

    Attributes:
        page: The browser's.
        address: Of the UI.
        pictures: Where pictures of it go.
    """

    page: Page
    address: str
    pictures: Path

    def open(self, path: str, size: dict[str, int]) -> Page:
        self.page.set_viewport_size({"width": size["width"], "height": size["height"]})
        self.page.goto("about:blank")  # or else a page that differs in nothing stays as it is
        self.page.goto(f"{self.address}/#{path}")
        return self.page

    def take(self, name: str, part: FloatRect | None = None) -> None:
        self.page.wait_for_load_state("networkidle")
        self.page.screenshot(path=self.pictures / f"{name}.png", animations="disabled", clip=part)


@pytest.fixture(scope="module")
def ui(admin: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if "KFP_UI" not in os.environ:
        pytest.skip("no page of Kubeflow Pipelines: set KFP_UI, such as http://127.0.0.1:3000")
    if not chromium:
        pytest.skip("no Chromium: install it")
    pictures = Path(os.environ.get("PICTURES") or tmp_path_factory.mktemp("pictures"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        yield Ui(page, os.environ["KFP_UI"], pictures)
        browser.close()


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """Of the pipeline and of the experiment."""
    client, name = connected(), f"ddpipe-training-{uuid.uuid4().hex[:6]}"
    client.create_experiment(name)
    yield name
    remove_experiment(client, name)
    remove_pipeline(client, name)


@pytest.fixture(scope="module")
def form(ui: Ui, name: str, tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The form of the package with drop-downs, uploaded a moment ago, filled in for two pods."""
    package = COMPILED / f"{TRAINING.name}-dropdowns.yaml"
    page = ui.open("/pipeline_versions/new", FORM)
    page.get_by_label("Upload a file").check()
    page.locator("input[type=file]").set_input_files(
        package_with_test_images(package, tmp_path_factory.mktemp("package"))
    )
    page.locator("#newPipelineName").fill(name)
    page.locator("#createNewPipelineOrVersionBtn").click()
    fill_in(page, name, TITLE, TYPED)
    ui.take("form", PARAMETERS)
    return page


def fill_in(page: Page, experiment: str, title: str, values: Mapping[str, str]) -> None:
    """Open the form of the pipeline that is shown, and fill it in.

    Args:
        page: Shows a pipeline.
        experiment: Name of the run's.
        title: The run's own name.
        values: By field; the others keep their defaults.
    """
    page.get_by_text("clean-up").first.wait_for()  # until then, the button does not know the pipeline
    page.locator("#createNewRunBtn").click()
    page.locator("#chooseExperimentBtn").click()
    page.get_by_role("dialog").get_by_text(experiment).click()
    page.get_by_role("button", name="Use this experiment").click()
    page.get_by_label("Run name").fill(title)
    for field, value in values.items():
        page.locator(f"#{field}").fill(value)


def start(form: Page, admin: ApiServer) -> Run:
    """Start the run of a form that is filled in, and wait for its end."""
    form.locator("#startNewRunBtn").click()
    form.wait_for_url("**/runs/details/*")
    run_id = form.url.rpartition("/")[2]
    run = Run(connected(), admin, run_id, f"s3://mlpipeline/ddpipe/runs/{run_id}")
    assert run.ended() == "SUCCEEDED", run.failure()
    return run


@pytest.fixture(scope="module")
def run(form: Page, admin: ApiServer, root: str) -> Run:
    """A run on two pods, started by the form, at its end."""
    return start(form, admin)


def open_graph(ui: Ui, run: Run) -> Page:
    """The steps of the run, all in sight."""
    page = ui.open(f"/runs/details/{run.id}", RUN)
    page.get_by_test_id("expand-button").click()
    page.locator("[id='task.prepare']").wait_for()
    page.locator(".react-flow__controls-fitview").click()
    return page


def test_the_form_offers_closed_choices(form: Page) -> None:
    for item in TRAINING.parameters:
        if isinstance(item.allowed, OneOf):
            form.locator(f"#{item.name}").click()
            assert form.get_by_role("option").all_text_contents() == list(item.allowed.names)
            form.keyboard.press("Escape")
            form.get_by_role("listbox").wait_for(state="hidden")


def test_the_form_has_a_field_for_each_parameter_with_its_default(form: Page) -> None:
    labels = form.locator("label").all_text_contents()
    assert {label.partition(" - ")[0] for label in labels if " - " in label} == {
        item.name for item in TRAINING.parameters
    }
    assert form.locator("#train_epochs").input_value() == "auto"
    assert form.locator("#train_model").input_value() == "auto"


def test_a_run_that_was_started_by_the_form_trains_on_two_pods(run: Run) -> None:
    assert json.loads(read_uri(f"{run.folder}/training/training.json"))["world_size"] == 2
    assert run.jobs() == []


def test_the_graph_shows_the_steps_and_what_they_made(run: Run, ui: Ui) -> None:
    page = open_graph(ui, run)
    for step in TRAINING.tasks:
        expect(page.locator(f"[id='task.{step.step.name}']")).to_be_visible()
    ui.take("graph")


@pytest.mark.parametrize("artifact", ["prepare.data_report", "evaluate.evaluation_report", "export.report"])
def test_a_report_is_shown_beside_the_graph(run: Run, ui: Ui, artifact: str) -> None:
    page = open_graph(ui, run)
    page.locator(f"[id='artifact.{artifact}']").click()
    page.get_by_role("button", name="Visualization").click()
    expect(page.frame_locator("iframe").locator("h1")).to_be_visible()
    ui.take("run-report")  # the last one stays: that of the whole run


def test_three_fields_are_enough_for_photographs(
    run: Run, ui: Ui, admin: ApiServer, name: str, root: str, tmp_path: Path
) -> None:
    """Where they are, what they are called, and how long it may take: all else is chosen by the data."""
    upload_tiles(tmp_path, f"{root}/photographs", 60)
    page = ui.open(f"/pipelines/details/{run.client.get_pipeline_id(name)}", RUN)
    typed = {"data_path": f"{root}/photographs", "data_name": "photographs", "train_minutes": "2"}
    fill_in(page, name, "photographs", typed)
    own = start(page, admin)
    training = json.loads(read_uri(f"{own.folder}/training/training.json"))
    assert training["choice"]["chosen"]["model"]["value"] == "fast-cnn-small"
    accuracy = json.loads(read_uri(f"{own.folder}/evaluation/metrics.json"))["scores"]["accuracy"]["value"]
    assert accuracy >= 0.9
    assert read_uri(f"{own.folder}/model/model.onnx")
    page = open_graph(ui, own)
    page.locator("[id='artifact.export.report']").click()
    page.get_by_role("button", name="Visualization").click()
    expect(page.frame_locator("iframe").locator("h1")).to_contain_text(own.id)
