"""Training and prediction with fastai."""

import time

import pandas as pd
from fastai.vision.all import *


def train(folder, minutes, side):
    began = time.time()
    pictures = ImageDataLoaders.from_folder(
        f"{folder}/train",
        valid_pct=0.15,
        seed=0,
        item_tfms=Resize(side),
        batch_tfms=aug_transforms(),
        num_workers=2,
    )
    learner = vision_learner(pictures, resnet18, pretrained=False, metrics=accuracy)
    learner.path = Path(".")
    learner.fit_one_cycle(1)
    epoch = time.time() - began
    learner.fit_one_cycle(max(1, int((60 * minutes - 2 * epoch) / epoch)))
    learner.export("model.pkl")


def predict(folder):
    learner = load_learner("model.pkl")
    files = get_image_files(folder)
    probabilities, _ = learner.get_preds(dl=learner.dls.test_dl(files, num_workers=0))
    table = pd.DataFrame(probabilities.numpy(), columns=learner.dls.vocab)
    table.insert(0, "image", [str(file) for file in files])
    table.to_csv("predictions.csv", index=False)
