"""A data set in the shape of Kaggle's RANZCR CLiP: train.csv with eleven labels and patients, and train/."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

LABELS = (
    *("ETT - Abnormal", "ETT - Borderline", "ETT - Normal"),
    *("NGT - Abnormal", "NGT - Borderline", "NGT - Incompletely Imaged", "NGT - Normal"),
    *("CVC - Abnormal", "CVC - Borderline", "CVC - Normal", "Swan Ganz Catheter Present"),
)
PATIENTS, IMAGES, SIDE = 60, 240, 32


def xrays(root: Path) -> dict[str, str]:
    """Gray noise in which each label is a bright spot in a place of its own; each image's patient."""
    random = np.random.default_rng(0)
    labels = (random.random((IMAGES, len(LABELS))) < 0.3).astype(int)
    patients = {f"1.2.826.{number}": f"{number % PATIENTS:09x}" for number in range(IMAGES)}
    (root / "train").mkdir(parents=True)
    with (root / "train.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["StudyInstanceUID", *LABELS, "PatientID"])
        for (study, patient), shown in zip(patients.items(), labels.tolist(), strict=True):
            table.writerow([study, *shown, patient])
            pixels = random.integers(0, 100, (SIDE, SIDE), dtype=np.uint8)
            for number in np.flatnonzero(shown):
                row, column = divmod(int(number), 4)
                pixels[8 * row : 8 * row + 6, 8 * column : 8 * column + 6] += 60
            Image.fromarray(pixels).save(root / "train" / f"{study}.jpg", quality=95)
    return patients
