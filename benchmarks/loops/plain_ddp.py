"""A plain loop for several processes, with care: bf16, channels-last, a sampler, a schedule, a whole score.

torchrun --nproc-per-node 2 plain_ddp.py FOLDER EPOCHS
"""

import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

folder, epochs, batch = sys.argv[1], int(sys.argv[2]), 64
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
normalize = transforms.Normalize((0.5,) * 3, (0.5,) * 3)
train_set = datasets.ImageFolder(f"{folder}/train", transforms.Compose([transforms.ToTensor(), normalize]))
test_set = datasets.ImageFolder(f"{folder}/test", transforms.Compose([transforms.ToTensor(), normalize]))
sampler = DistributedSampler(train_set, seed=0)
train = DataLoader(train_set, batch_size=batch // size, sampler=sampler)
test = DataLoader(torch.utils.data.Subset(test_set, range(rank, len(test_set), size)), batch_size=512)
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
).to(memory_format=torch.channels_last)
parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(train))
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    parallel.train()
    for images, labels in train:
        with torch.autocast("cpu", torch.bfloat16):
            logits = parallel(images.to(memory_format=torch.channels_last))
        loss = nn.functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    correct = torch.zeros(())
    with torch.no_grad():
        for images, labels in test:
            correct += (model(images).argmax(1) == labels).sum()
    dist.all_reduce(correct)
    if rank == 0:
        print(f"epoch={epoch + 1} validation_accuracy={correct.item() / len(test_set)}", flush=True)
dist.destroy_process_group()
