"""A search with the Kubeflow SDK: scikit-learn's digits, a small network, trials as TrainJobs.

python optimizer_client.py NAMESPACE IMAGE TRIALS EPOCHS      waits for the end, prints the best values
"""

import sys

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.optimizer import Objective, OptimizerClient, Search, TrialConfig
from kubeflow.trainer import CustomTrainer, TrainJobTemplate

namespace, image, trials, epochs = sys.argv[1:]


def train(learning_rate, epochs):
    import time

    import numpy as np
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import nn

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    x_train, x_test, y_train, y_test = map(torch.as_tensor, parts)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=float(learning_rate), momentum=0.9, weight_decay=5e-4)
    for _ in range(int(epochs)):
        began = time.monotonic()
        model.train()
        for batch in torch.randperm(len(x_train)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            score = (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f"epoch_seconds={time.monotonic() - began:.3f}", flush=True)
        print(f"val_accuracy={score:.4f}", flush=True)


client = OptimizerClient(KubernetesBackendConfig(namespace=namespace))
resources = {"cpu": "500m", "memory": "2Gi"}
name = client.optimize(
    trial_template=TrainJobTemplate(
        trainer=CustomTrainer(train, {"epochs": epochs}, image, resources_per_node=resources)
    ),
    search_space={"learning_rate": Search.loguniform(0.01, 1)},
    objectives=[Objective(metric="val_accuracy", direction="maximize")],
    trial_config=TrialConfig(num_trials=int(trials), parallel_trials=2),
)
print(name, flush=True)
client.wait_for_job_status(name, timeout=1800)
print(client.get_best_results(name))
