"""The same loop with Hugging Face Accelerate.

torchrun --nproc-per-node 2 with_accelerate.py FOLDER EPOCHS
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

folder, epochs, batch = sys.argv[1], int(sys.argv[2]), 64
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
normalize = transforms.Normalize((0.5,) * 3, (0.5,) * 3)
transform = transforms.Compose([transforms.ToTensor(), normalize])
share = batch // accelerator.num_processes
train = DataLoader(datasets.ImageFolder(f"{folder}/train", transform), batch_size=share, shuffle=True)
test = DataLoader(datasets.ImageFolder(f"{folder}/test", transform), batch_size=512)
torch.manual_seed(0)
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
model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(train))
for epoch in range(epochs):
    model.train()
    for images, labels in train:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
    model.eval()
    correct = total = 0
    for images, labels in test:
        with torch.no_grad():
            predicted, true = accelerator.gather_for_metrics((model(images).argmax(1), labels))
        correct, total = correct + (predicted == true).sum().item(), total + len(true)
    accelerator.print(f"epoch={epoch + 1} validation_accuracy={correct / total}", flush=True)
accelerator.end_training()
