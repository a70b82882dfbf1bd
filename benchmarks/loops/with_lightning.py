"""The same training with Lightning.

torchrun --nproc-per-node 2 with_lightning.py FOLDER EPOCHS
"""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy
from torchvision import datasets, transforms


class SimpleCNN(lightning.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.accuracy = MulticlassAccuracy(10, average="micro")
        self.network = nn.Sequential(
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

    def training_step(self, batch):
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch):
        self.accuracy.update(self.network(batch[0]), batch[1])

    def on_validation_epoch_end(self):
        score = self.accuracy.compute().item()
        self.accuracy.reset()
        if self.trainer.is_global_zero:
            print(f"epoch={self.current_epoch + 1} validation_accuracy={score}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


folder, epochs, batch, processes = sys.argv[1], int(sys.argv[2]), 64, 2
normalize = transforms.Normalize((0.5,) * 3, (0.5,) * 3)
transform = transforms.Compose([transforms.ToTensor(), normalize])
train = datasets.ImageFolder(f"{folder}/train", transform)
test = datasets.ImageFolder(f"{folder}/test", transform)
lightning.seed_everything(0)
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=processes,
    precision="bf16-mixed",
    max_epochs=epochs,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
trainer.fit(
    SimpleCNN(epochs * len(train) // batch),
    DataLoader(train, batch_size=batch // processes, shuffle=True),
    DataLoader(test, batch_size=512),
)
