"""Training and prediction with ddpipe."""

from pathlib import Path

import pandas as pd

import ddpipe


def train(folder, minutes, side):
    ddpipe.run(folder, minutes=minutes, run="race")


def predict(folder):
    files = [str(path) for path in Path(folder).rglob("*") if path.is_file()]
    answers = ddpipe.load_model("runs/race/model").predict(files)
    rows = [{"image": one.image} | one.probabilities for one in answers]
    pd.DataFrame(rows).to_csv("predictions.csv", index=False)
