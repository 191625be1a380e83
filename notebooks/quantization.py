# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Quantization after training: a few bits per weight, a few batches of data
#
# A network is trained once. Then its weights are put on grids of 4, 8 or 16 values so that the
# *outputs* of each layer change least, which takes the Gram matrix of its inputs and no training.

# %%
import copy

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from tensoralg.nn import Calibrator, allocate_bits, comq, load_quantized, quantize
from tensoralg.nn.evaluation import accuracy, evaluate
from tensoralg.nn.training import fit

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## One weight
#
# Inputs that are correlated, as inputs of layers are. Rounding each entry to the nearest value is
# the best answer for the weight, and a poor one for the outputs.

# %%
inputs = torch.randn(2000, 64) @ torch.randn(64, 64) * torch.linspace(0.05, 1, 64)
weight = torch.randn(32, 64) / 8
gram = inputs.T @ inputs


def output_error(found):
    """Relative change of the outputs."""
    change = inputs @ (weight - found.dequantize()).T
    return float(change.norm() / (inputs @ weight.T).norm())


figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for bits in (4, 3, 2):
    nearest = output_error(comq(weight, torch.eye(64), bits))
    ours = comq(weight, gram, bits)
    assert list(ours.errors) == sorted(ours.errors, reverse=True)  # no sweep raises the error
    assert output_error(ours) < nearest
    print(
        f"{bits} bits: {nearest:.3f} fitted to the weight, {output_error(ours):.3f} to the outputs"
    )
    axes.semilogy(range(len(ours.errors)), ours.errors, "o-", label=f"{bits} bits")
axes.set(xlabel="sweep (0: the GPTQ start)", ylabel="relative error of the outputs")
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# ## A network

# %%
digits = load_digits()
parts = train_test_split(digits.data / 16.0, digits.target, random_state=0, stratify=digits.target)
X, X_test, y, y_test = (torch.as_tensor(part) for part in parts)
batches = list(zip(X.float().split(64), y.split(64), strict=True))
test = list(zip(X_test.float().split(64), y_test.split(64), strict=True))


def network():
    """64 pixels, two hidden layers of 128 units, ten classes."""
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers)


def share(model):
    """Test digits that are recognised."""
    return evaluate(model, test, {"accuracy": accuracy})["accuracy"]


model = network()
fit(model, batches, torch.optim.AdamW(model.parameters(), lr=3e-3), epochs=15)
model.eval()
calibrator = Calibrator(model).run([images for images, _ in batches[:8]])
found = {}
for bits in (8, 4, 3, 2):
    small = copy.deepcopy(model)
    report = quantize(small, calibrator, bits)
    found[bits] = share(small), report
    print(f"{bits} bits: {found[bits][0]:.3f} of the digits, {share(model):.3f} before")
print(found[4][1])
assert found[4][0] > share(model) - 0.02

# %%
found[3][1].plot()

# %% [markdown]
# ## A budget of bytes
#
# Where does a byte help most? Layers get different numbers of bits.

# %%
chosen = allocate_bits(model, calibrator, 11_000)
small = copy.deepcopy(model)
report = quantize(small, calibrator, chosen)
print(report)
print(f"{share(small):.3f} of the digits")
assert sum(row.bytes_after for row in report.rows) <= 11_000

# %% [markdown]
# ## Saved and loaded
#
# The file holds tensors of packed integers; a network built as the float one was takes them.

# %%
again = network()
load_quantized(again, small.state_dict())
again.eval()
with torch.no_grad():
    assert torch.equal(again(X_test.float()), small.eval()(X_test.float()))
