"""Handwritten digits: test accuracy while the ranks fall to a budget of parameters."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from tensoralg.nn import RankScheduler, tensorize
from tensoralg.nn.evaluation import accuracy, evaluate
from tensoralg.nn.training import fit

torch.manual_seed(0)
torch.set_num_threads(1)
digits = load_digits()
parts = train_test_split(digits.data / 16.0, digits.target, random_state=0, stratify=digits.target)
X, X_test, y, y_test = (torch.as_tensor(part) for part in parts)
batches = list(zip(X.float().split(64), y.split(64), strict=True))
test = list(zip(X_test.float().split(64), y_test.split(64), strict=True))


def network():
    """Return a network: 64 pixels, two hidden layers of 256."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers)


def course(model, scheduler=None, optimizer=None):
    """Return parameters and accuracy after every epoch."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(12):
        fit(model, batches, optimizer, epochs=1, rank_scheduler=scheduler)
        size = sum(parameter.numel() for parameter in model.parameters())
        found.append((size, evaluate(model, test, {"accuracy": accuracy})["accuracy"]))
    return found


dense = course(network())
small, _ = tensorize(network(), rank=16, initial="random")
optimizer = torch.optim.AdamW(small.parameters(), lr=1e-2)
scheduler = RankScheduler(small, optimizer=optimizer, target_parameters=5_000)
trains = course(small, scheduler, optimizer)
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for label, found, colour in (("dense", dense, "#555555"), ("tensor trains", trains, "#0072B2")):
    label = f"{label}, {found[-1][0]:,} parameters at the end"
    axes.plot(range(1, 13), [share for _, share in found], "o-", color=colour, label=label)
axes.set(xlabel="epoch", ylabel="test accuracy, digits")
axes.legend(frameon=False, loc="lower right")
axes.grid(alpha=0.3)
