"""Training and prediction with Ultralytics' YOLO."""

from pathlib import Path

import pandas as pd
from ultralytics import YOLO


def train(folder, minutes, side):
    model = YOLO("yolo11n-cls.yaml")
    model.train(
        data=f"{folder}/train",
        time=minutes / 60,
        imgsz=side,
        workers=2,
        plots=False,
        project=Path.cwd(),
        name="race",
    )


def predict(folder):
    model = YOLO("race/weights/best.pt")
    rows = [
        {"image": answer.path} | dict(zip(answer.names.values(), answer.probs.data.tolist()))
        for answer in model.predict(f"{folder}/**/*", stream=True, verbose=False)
    ]
    pd.DataFrame(rows).to_csv("predictions.csv", index=False)
