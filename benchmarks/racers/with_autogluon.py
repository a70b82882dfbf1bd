"""Training and prediction with AutoGluon."""

from pathlib import Path

import pandas as pd
from autogluon.multimodal import MultiModalPredictor
from timm import create_model
from timm.models.hub import save_for_hf


def table_of(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return pd.DataFrame({"image": map(str, files), "label": [file.parent.name for file in files]})


def train(folder, minutes, side):
    predictor = MultiModalPredictor(label="label", path="model")
    # Its fit() knows no network without weights but one in a folder.
    save_for_hf(create_model("resnet18", num_classes=0), "random", safe_serialization=False)
    predictor.fit(
        table_of(f"{folder}/train"),
        time_limit=60 * minutes,
        hyperparameters={"model.names": ["timm_image"], "model.timm_image.checkpoint_name": "random"},
    )


def predict(folder):
    table = table_of(folder)
    probabilities = MultiModalPredictor.load("model").predict_proba(table[["image"]], as_pandas=True)
    probabilities.insert(0, "image", table["image"])
    probabilities.to_csv("predictions.csv", index=False)
