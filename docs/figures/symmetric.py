"""Points recovered from a symmetric tensor with noise: how the error follows the noise."""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import linear_sum_assignment

from tensoralg import SymmetricTensor
from tensoralg.symmetric import decompose

rng = np.random.default_rng(0)
points = rng.standard_normal((6, 10))
exact = SymmetricTensor.from_decomposition(np.ones(6), points, order=3)


def worst_error(tensor):
    """Return the largest distance of a true point from the one recovered in its place."""
    found = decompose(tensor, 6, rng=0).decomposition
    scaled = found.points * np.cbrt(found.weights)[:, None]
    distances = np.linalg.norm(points[:, None] - scaled[None], axis=2)
    return distances[linear_sum_assignment(distances)].max()


levels = 10.0 ** np.arange(-10, 0)
scale = np.abs(exact.entries).mean()
errors = []
for level in levels:
    noise = level * scale * rng.standard_normal(exact.entries.shape)
    errors.append(worst_error(SymmetricTensor(exact.entries + noise, 3, 10)))
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.loglog(levels, errors, "o-", color="#0072B2")
axes.set(xlabel="noise, in mean absolute entries", ylabel="largest error of a point")
axes.grid(alpha=0.3)
