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
# # Polyadic decomposition: known terms, unknown rank, missing cells, few bits
#
# A tensor is written as a short sum of rank-one terms. The terms are unique up to their order
# under mild conditions, so they can be found again where they are known, and read where they are
# not.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np
from tensorly.datasets import load_IL2data
from tensorly.decomposition import parafac

from tensoralg import KruskalTensor
from tensoralg.errors import ConvergenceWarning
from tensoralg.polyadic import decompose, rank_scan

# %% [markdown]
# ## Terms that are hard to tell apart
#
# Five terms whose columns have cosines of about .9 in every mode, and noise. Alternating least
# squares crawls on such tensors; the compressed method solves a small core by Gauss-Newton steps.

# %%
rng = np.random.default_rng(3)
shape, rank = (60, 50, 40), 5
factors = [
    np.sqrt(0.9) * rng.standard_normal((n, 1)) + np.sqrt(0.1) * rng.standard_normal((n, rank))
    for n in shape
]
truth = KruskalTensor(None, factors)
signal = truth.to_dense()
X = signal + 0.01 * signal.std() * rng.standard_normal(shape)

ours = decompose(X, rank, rng=0)
print(ours.message)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", ConvergenceWarning)
    alternating = decompose(X, rank, method="als", max_iter=200, tol=0, rng=0)
_, errors = parafac(
    X, rank, n_iter_max=200, tol=0, init="random", random_state=0, return_errors=True
)
best = truth.fit(X)
print(f"match with the truth {ours.tensor.match_score(truth):.5f}; fit of the truth {best:.6f}")
assert ours.fit >= best - 1e-6
assert ours.tensor.match_score(truth) > 0.95

# %%
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
top = ours.fit + 1e-9
for label, fits, style in (
    ("compressed (Gauss-Newton on a core, then X)", ours.history, "o-"),
    ("alternating least squares, accelerated", alternating.history, "-"),
    ("TensorLy's alternating least squares", 1 - np.array([float(e) for e in errors]), "--"),
):
    gap = np.maximum(top - np.asarray(fits), 1e-9)
    axes.semilogy(np.arange(1, len(gap) + 1), gap, style, label=label, markersize=4)
axes.set(xlabel="iteration", ylabel="best fit - fit", xscale="log")
axes.legend(frameon=False)
axes.grid(alpha=0.3)

# %% [markdown]
# ## How many terms?
#
# With too few terms the fit is short; with too many the core consistency falls and different
# starts find different terms.

# %%
easy = KruskalTensor(None, [rng.standard_normal((n, 3)) for n in (20, 18, 16)]).to_dense()
scan = rank_scan(easy + 0.3 * easy.std() * rng.standard_normal(easy.shape), range(1, 6), rng=0)
figure = scan.plot()
assert scan.agreements[2] > 0.99
assert scan.core_consistencies[2] > 90

# %% [markdown]
# ## Missing cells
#
# Responses of eight cell types to thirteen forms of interleukin-2 at four times and twelve doses;
# 192 of the 4992 cells were not measured. They are marked in a mask, and never used. Responses are
# nonnegative, and so are the factors: without that, two terms of opposite sign would nearly cancel.

# %%
data = load_IL2data()
responses = np.asarray(data.tensor)
observed = np.isfinite(responses)
found = decompose(responses, 3, mask=observed, nonnegative=True, n_starts=5, tol=1e-7, rng=0)
print(f"{(~observed).sum()} cells missing; fit of the observed ones {found.fit:.4f}")
assert found.fit > 0.75

figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
for axes, mode, title in zip(panels, (3, 2), ("cell types", "doses"), strict=True):
    columns = found.tensor.factors[mode]
    image = axes.imshow(columns, cmap="Blues", vmin=0, aspect="auto")
    axes.set(title=title, xticks=range(3), xlabel="term")
    if mode == 3:
        axes.set_yticks(range(len(columns)), data.ticks[3])
figure.colorbar(image, ax=panels)

# %% [markdown]
# ## Few bits in the large products
#
# Operands rounded to eight bits leave a floor; a few exact sweeps at the end remove it.

# %%
noisy = easy + 1e-3 * easy.std() * rng.standard_normal(easy.shape)
exact = decompose(noisy, 3, rng=0).fit
for precision in ("bfloat16", "int8", "float8"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rough, fine = (
            decompose(noisy, 3, precision=precision, exact_finish=finish, n_starts=3, rng=0).fit
            for finish in (False, True)
        )
    print(f"{precision:9s} without the finish {rough:.6f}, with it {fine:.6f}, exact {exact:.6f}")
    assert fine > exact - 1e-5
