"""Training on real GPUs: every strategy, resuming, families, memory, compiler, export."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torchvision
from recipes import plain
from samples import published, some_images
from training_ranks import SignalAtStep
from training_runs import RECIPE, final, losses, record, run, same_bits, trained

from ddpipe.evaluate.evaluate import evaluate
from ddpipe.export.export import export
from ddpipe.storage import open_store
from ddpipe.train.train import train

SMALL = replace(RECIPE, epochs=1, precision="fp32")
FAMILIES = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t"),
    *("mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "resnext50_32x4d"),
    *("shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11", "vit_b_16", "wide_resnet50_2"),
)
STRATEGIES = [
    pytest.param("single", 1, marks=pytest.mark.gpus(1)),
    pytest.param("ddp", 1, marks=pytest.mark.gpus(1)),
    pytest.param("dp", 1, marks=pytest.mark.gpus(2)),
    pytest.param("ddp", 2, marks=pytest.mark.gpus(2)),
    pytest.param("fsdp", 2, marks=pytest.mark.gpus(2)),
]


def photographs(folder: Path, side: int) -> str:
    """A dataset of 8 images to train on."""
    splits = {
        name: [some_images(count, (side, side, 3))] for name, count in (("train", 8), ("validation", 4))
    }
    return published(open_store(str(folder)), splits | {"test": [some_images(4, (side, side, 3))]})


@pytest.mark.parametrize(("strategy", "ranks"), STRATEGIES)
def test_every_strategy_has_the_loss_curve_of_the_cpu(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, ranks: int
) -> None:
    output = str(tmp_path / "gpu")
    trained(dataset, output, replace(SMALL, strategy=strategy), ranks=ranks)
    assert record(output)["device"] == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    trained(dataset, str(tmp_path / "cpu"), SMALL, ranks=1)
    assert record(str(tmp_path / "cpu"))["device"] == "cpu"
    assert losses(output) == pytest.approx(losses(str(tmp_path / "cpu")), rel=2e-2)


@pytest.mark.parametrize(("strategy", "ranks"), STRATEGIES)
@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_a_killed_training_is_resumed_bit_for_bit(
    dataset: str, tmp_path: Path, strategy: str, ranks: int, precision: str
) -> None:
    recipe = replace(SMALL, strategy=strategy, precision=precision, deterministic="true")
    output, meddling = str(tmp_path / "killed"), [SignalAtStep(0, 7, signal.SIGKILL, stored=0)]
    run(dataset, output, replace(recipe, checkpoint_minutes=1e-9), ranks=ranks, meddling=meddling)
    resumed = trained(dataset, output, recipe, ranks=ranks)
    assert 0 < record(output)["resumed_from"] <= 7
    assert same_bits(resumed, trained(dataset, str(tmp_path / "whole"), recipe, ranks=ranks))


@pytest.mark.gpus(2)
def test_sync_batch_norm_trains_on_two_gpus(tmp_path: Path) -> None:
    recipe = plain(model="resnet18", epochs=1, batch_size=4, sync_batch_norm=True)
    trained(photographs(tmp_path / "data", 64), str(tmp_path / "training"), recipe, ranks=2)


@pytest.mark.parametrize("model", FAMILIES)
def test_every_torchvision_family_takes_two_steps(tmp_path: Path, model: str) -> None:
    assert model in torchvision.models.list_models()
    side = 299 if model == "inception_v3" else 224
    recipe = plain(model=model, epochs=1, batch_size=4, learning_rate=1e-4)
    trained(photographs(tmp_path / "data", side), str(tmp_path / "out"), recipe, ranks=1)
    assert final(str(tmp_path / "out")).step == 2


def test_fp16_trains(dataset: str, tmp_path: Path) -> None:
    end = trained(dataset, str(tmp_path / "out"), replace(RECIPE, precision="fp16"), ranks=1)
    assert end.states["scaler"]["scale"] > 0
    assert end.history[-1]["validation_accuracy"] > 0.3


def test_a_compiled_network_has_the_loss_curve_of_a_plain_one(dataset: str, tmp_path: Path) -> None:
    for name, compiled in (("plain", False), ("compiled", True)):
        trained(dataset, str(tmp_path / name), replace(SMALL, compile=compiled), ranks=1)
    assert losses(str(tmp_path / "compiled")) == pytest.approx(losses(str(tmp_path / "plain")), rel=2e-2)


@pytest.mark.gpus(2)
def test_fsdp_needs_less_memory_per_gpu_than_ddp(tmp_path: Path) -> None:
    dataset, peaks = photographs(tmp_path / "data", 64), {}
    for strategy in ("ddp", "fsdp"):
        recipe = plain(model="vit_b_16", epochs=1, batch_size=4, strategy=strategy, optimizer="adamw")
        output = str(tmp_path / strategy)
        trained(dataset, output, recipe, ranks=2)
        peaks[strategy] = record(output)["summary"]["gpu_memory"]
    assert peaks["fsdp"] < 0.8 * peaks["ddp"]


def test_a_trained_model_is_evaluated_and_exported(dataset: str, tmp_path: Path) -> None:
    training, evaluation, package = (str(tmp_path / name) for name in ("training", "evaluation", "model"))
    train(dataset, training, RECIPE)
    found = evaluate(training, dataset, evaluation)
    assert found.subject.device == "cuda"
    export(training, dataset, evaluation, package)
    seal = json.loads((Path(package) / "signature.json").read_text())
    assert seal


def test_memory_is_bounded_by_pixels_in_validation(tmp_path: Path) -> None:
    """Validation of large images must not need much more memory than training."""
    splits = {"train": [some_images(4, (512, 512, 3))], "validation": [some_images(64, (512, 512, 3))]}
    uri = published(open_store(str(tmp_path / "data")), splits | {"test": [some_images(2, (512, 512, 3))]})
    recipe = plain(model="resnet18", epochs=1, batch_size=2)
    torch.cuda.reset_peak_memory_stats()
    train(uri, str(tmp_path / "out"), recipe)
    assert record(str(tmp_path / "out"))["summary"]["gpu_memory"] < 4 * 2**30
