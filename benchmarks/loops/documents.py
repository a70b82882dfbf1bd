"""The training loop of a typical first tutorial: one process, a folder of images, SGD, fp32.

python documents.py FOLDER EPOCHS
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

folder, epochs = sys.argv[1], int(sys.argv[2])
transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
train = DataLoader(datasets.ImageFolder(f"{folder}/train", transform), batch_size=64, shuffle=True)
test = DataLoader(datasets.ImageFolder(f"{folder}/test", transform), batch_size=64)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(2304, 128),
    nn.ReLU(),
    nn.Linear(128, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
criterion = nn.CrossEntropyLoss()
for epoch in range(epochs):
    model.train()
    for images, labels in train:
        optimizer.zero_grad()
        criterion(model(images), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test)
    print(f"epoch={epoch + 1} validation_accuracy={correct / len(test.dataset)}", flush=True)
