"""A search with Optuna, written by hand: scikit-learn's digits, a small network, a journal to continue from.

python optuna_digits.py TRIALS EPOCHS        prints the trials as JSON
"""

import json
import sys
import time

import numpy as np
import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

trials, epochs = map(int, sys.argv[1:])
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
x_train, x_test, y_train, y_test = map(torch.as_tensor, parts)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def objective(trial):
    torch.manual_seed(0)
    rate = trial.suggest_float("learning_rate", 0.01, 1, log=True)
    model, began, score = network(), time.monotonic(), 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    for epoch in range(epochs):
        model.train()
        for batch in torch.randperm(len(x_train)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = (model(x_test).argmax(1) == y_test).float().mean().item()
        trial.report(score, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    trial.set_user_attr("seconds", time.monotonic() - began)
    return score


storage = JournalStorage(JournalFileBackend("journal.log"))
sampler, pruner = optuna.samplers.TPESampler(seed=0), optuna.pruners.MedianPruner(n_startup_trials=4)
study = optuna.create_study(
    study_name="digits",
    storage=storage,
    load_if_exists=True,
    direction="maximize",
    sampler=sampler,
    pruner=pruner,
)
study.optimize(objective, n_trials=trials - len(study.trials))
print(json.dumps({"best": study.best_params, "score": study.best_value}))
