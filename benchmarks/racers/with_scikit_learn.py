"""Training and prediction with scikit-learn: logistic regression on pixels."""

from pathlib import Path

import joblib
import numpy as np
import pandas as pd
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def pixels(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return files, np.stack([np.ravel(Image.open(file).convert("RGB").resize((32, 32))) for file in files])


def train(folder, minutes, side):
    files, values = pixels(f"{folder}/train")
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    model.fit(values, [file.parent.name for file in files])
    joblib.dump(model, "model.joblib")


def predict(folder):
    model = joblib.load("model.joblib")
    files, values = pixels(folder)
    table = pd.DataFrame(model.predict_proba(values), columns=model.classes_)
    table.insert(0, "image", [str(file) for file in files])
    table.to_csv("predictions.csv", index=False)
