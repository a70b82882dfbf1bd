"""Handwritten digits with Hugging Face Accelerate: a training script that does not know about ddpipe."""

import argparse
import os

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=64)
arguments = parser.parse_args()

accelerator = Accelerator(cpu=True, mixed_precision="bf16")
pixels, classes = load_digits(return_X_y=True)
images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(classes)
torch.manual_seed(0)
order = torch.randperm(len(images))
shuffled = TensorDataset(images[order], labels[order])
share = arguments.batch_size // accelerator.num_processes
train = DataLoader(torch.utils.data.Subset(shuffled, range(1437)), batch_size=share, shuffle=True)
test = DataLoader(torch.utils.data.Subset(shuffled, range(1437, 1797)), batch_size=180)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 16, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)

for epoch in range(arguments.epochs):
    model.train()
    for batch, expected in train:
        loss = nn.functional.cross_entropy(model(batch), expected)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
    model.eval()
    correct = total = 0
    for batch, expected in test:
        with torch.no_grad():
            found = model(batch).argmax(1)
        found, true = accelerator.gather_for_metrics((found, expected))
        correct, total = correct + (found == true).sum().item(), total + len(true)
    accelerator.print(f"epoch={epoch + 1} loss={loss.item():.4f} accuracy={correct / total:.4f}", flush=True)
accelerator.print(f"{accelerator.num_processes} processes, {accelerator.mixed_precision}", flush=True)
accelerator.end_training()
# Gloo's threads outlive the process group and may release their last tensors while Python shuts down, which
# aborts a process that has finished its work (pytorch/pytorch#179291). Exit without that shutdown.
os._exit(0)
