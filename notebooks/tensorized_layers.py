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
# # Tensorized layers: fewer numbers, ranks that adapt, few bits
#
# A weight matrix whose entries are those of a tensor train holds few numbers and is multiplied
# quickly. Needs the extra `nn` (PyTorch).

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from tensoralg import TensorTrain
from tensoralg.nn import RankScheduler, TTLinear, export_codes, prepare_qat, tensorize
from tensoralg.nn.evaluation import accuracy, evaluate
from tensoralg.nn.training import fit

torch.manual_seed(0)
torch.set_num_threads(1)

# %% [markdown]
# ## A tensor train
#
# A function of four variables on a grid: 10,000 values, and a train that needs few numbers for any
# accuracy that is asked for.

# %%
x = np.linspace(0, 1, 10)
grid = np.meshgrid(x, x, x, x, indexing="ij")
values = np.exp(-sum(grid)) / (1 + sum(axis**2 for axis in grid))
tolerances = 10.0 ** -np.arange(1, 13)
trains = [TensorTrain.from_dense(values, rtol=rtol) for rtol in tolerances]
sizes = [sum(core.size for core in train.cores) for train in trains]
errors = [np.linalg.norm(t.to_dense() - values) / np.linalg.norm(values) for t in trains]
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.semilogy(sizes, errors, "o-")
axes.set(xlabel="numbers in the cores", ylabel="relative error", title="10,000 values")
axes.grid(alpha=0.3)
assert all(error <= rtol for error, rtol in zip(errors, tolerances, strict=True))
assert sizes[-1] < values.size / 5

# %% [markdown]
# ## A layer
#
# The planner counts operations and chooses a route for the number of tokens at hand.

# %%
layer = TTLinear(768, 3072, rank=32)
print(layer.explain(512))
dense = layer.to_linear()
tokens = torch.randn(5, 768)
torch.testing.assert_close(layer(tokens), dense(tokens), rtol=1e-4, atol=1e-4)

# %% [markdown]
# ## A network that shrinks while it learns
#
# Handwritten digits. One budget for all layers together; singular values go wherever they matter
# least.

# %%
digits = load_digits()
parts = train_test_split(digits.data / 16.0, digits.target, random_state=0, stratify=digits.target)
X, X_test, y, y_test = (torch.as_tensor(part) for part in parts)
batches = list(zip(X.float().split(64), y.split(64), strict=True))
test = list(zip(X_test.float().split(64), y_test.split(64), strict=True))


def network():
    """64 pixels, two hidden layers of 256 units, ten classes."""
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return nn.Sequential(*layers)


def parameters(model):
    """Numbers that are trained."""
    return sum(parameter.numel() for parameter in model.parameters())


def share(model):
    """Test digits that are recognised."""
    return evaluate(model, test, {"accuracy": accuracy})["accuracy"]


model, report = tensorize(network(), rank=16, initial="random")
print(report)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = RankScheduler(model, optimizer=optimizer, target_parameters=5_000, roundings=8)
course = []
for _ in range(15):
    fit(model, batches, optimizer, epochs=1, rank_scheduler=scheduler)
    course.append((parameters(model), share(model)))
print(f"{parameters(network()):,} parameters would be dense; {course[-1][0]:,} are left")
assert course[-1][0] < 6_000
assert course[-1][1] > 0.85

# %%
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
epochs = range(1, len(course) + 1)
axes.plot(epochs, [accuracy for _, accuracy in course], "o-", label="test accuracy")
axes.set(xlabel="epoch", ylabel="test accuracy", ylim=(0, 1))
other = axes.twinx()
other.plot(epochs, [size for size, _ in course], "s--", color="#D55E00", label="parameters")
other.set(ylabel="parameters", ylim=(0, None))
figure.legend(loc="lower right", bbox_to_anchor=(0.88, 0.2), frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# ## Few bits
#
# Quantizers with learned steps go on cores and activations; a few more epochs, and the codes are
# packed. What is exported computes the same outputs bit by bit.

# %%
before = share(model)
prepare_qat(model, 6, sample=(batches[0][0],))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
fit(model, batches, optimizer, epochs=6)
coded = export_codes(model)
whole = 4 * parameters(network())
print(f"{share(model):.3f} of the digits, {before:.3f} before; {coded.size_bytes:,} bytes")
print(f"a dense network in float32 has {whole:,} bytes: {whole / coded.size_bytes:.0f} times more")
assert share(model) > before - 0.05

# %%
again, _ = tensorize(network(), rank=16, initial="random")
prepare_qat(again, 6, sample=(batches[0][0],))
again.load_state_dict(coded.state_dict())
model.eval(), again.eval()
with torch.no_grad():
    assert torch.equal(again(X_test.float()), model(X_test.float()))
