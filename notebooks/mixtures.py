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
# # Recover a Gaussian mixture from its moments
#
# A mixture of Gaussians with diagonal covariances is drawn, and recovered in two ways: from its
# moments with `tensoralg`, and by expectation maximization (EM) with scikit-learn. Then the data
# are thrown away as they stream by, and the mixture is recovered from what the accumulator kept.

# %%
import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.mixture import GaussianMixture

from tensoralg.mixtures import (
    DiagonalGaussianMixture,
    MomentAccumulator,
    component_bound,
    plot_convergence,
    plot_mixture,
)

# %% [markdown]
# ## A known mixture
#
# Ten coordinates and four components that overlap: the means are about as far apart as the
# components are wide.

# %%
rng = np.random.default_rng(7)
n_samples, dimension, n_components = 40_000, 10, 4
weights = rng.dirichlet(np.full(n_components, 5.0))
means = 0.8 * rng.standard_normal((n_components, dimension))
variances = rng.uniform(0.3, 1.5, (n_components, dimension))

labels = rng.choice(n_components, size=n_samples, p=weights)
X = means[labels] + np.sqrt(variances[labels]) * rng.standard_normal((n_samples, dimension))
truth = DiagonalGaussianMixture.from_parameters(weights, means, variances)

# %% [markdown]
# Moments of order 3 determine this many components of ten coordinates; four is within the bound.

# %%
bound = component_bound(dimension, 3)
assert n_components <= bound
print(f"bound: {bound} components")

# %% [markdown]
# ## Fit it

# %%
ours = DiagonalGaussianMixture(n_components, random_state=0).fit(X)
moments_only = DiagonalGaussianMixture(n_components, polish=None, random_state=0).fit(X)
peer = GaussianMixture(n_components, covariance_type="diag", random_state=0).fit(X)


# %%
def matched_error(model):
    """Relative error of the means, components matched to the true ones."""
    distance = np.linalg.norm(model.means_[:, None] - means[None], axis=2)
    found, true = linear_sum_assignment(distance)
    return float(np.linalg.norm(model.means_[found] - means[true]) / np.linalg.norm(means))


models = {"moments + EM": ours, "moments alone": moments_only, "scikit-learn EM": peer}
print(f"{'':16s} {'mean error':>10s} {'log-likelihood per row':>24s}")
for name, model in models.items():
    print(f"{name:16s} {matched_error(model):10.4f} {model.score(X):24.4f}")
print(f"{'truth':16s} {0:10.4f} {truth.score(X):24.4f}")

# %%
assert matched_error(ours) < 0.05
assert matched_error(moments_only) < 0.15
assert ours.score(X) > truth.score(X) - 1e-3

# %% [markdown]
# What happened on the way is part of the result.

# %%
print(ours.diagnostics_)

# %% [markdown]
# ## Look at it
#
# Three of the ten coordinates, in pairs and alone: rows, the components that moments and EM found,
# and the true ones dashed. Without `columns` those are chosen that tell the components apart best.

# %%
plot_mixture(ours, X, truth=truth, columns=[0, 1, 2])

# %% [markdown]
# Any mixture with weights, means and variances can be drawn: scikit-learn's, too.

# %%
plot_mixture(peer, X, truth=truth, columns=[0, 1])

# %% [markdown]
# How the polish went: the likelihood of every pass, and what it gained.

# %%
plot_convergence(ours)

# %% [markdown]
# ## Stream it
#
# Two machines see one half each, chunk by chunk, and keep only moments. The halves are merged and
# the mixture is recovered without a second look at the data.

# %%
halves = []
for half in np.array_split(X, 2):
    accumulator = MomentAccumulator(dimension, 3)
    for start in range(0, len(half), 4096):
        accumulator.update(half[start : start + 4096])
    halves.append(accumulator)
merged = halves[0].merge(halves[1])
assert merged.count == n_samples

streamed = DiagonalGaussianMixture(n_components, polish=None, random_state=0).fit_moments(merged)
assert matched_error(streamed) < 0.15
print(f"mean error from the stream: {matched_error(streamed):.4f}")

# %% [markdown]
# The accumulator's size depends on the order and the dimension, not on the number of rows, and the
# moments do not depend on how the rows were cut into chunks.

# %%
at_once = MomentAccumulator(dimension, 3, shift=merged.shift).update(X)
assert np.allclose(merged.moments(3).values, at_once.moments(3).values, atol=1e-10)
