"""A mixture of four components in eight columns, recovered; ellipses beside the true ones."""

import numpy as np

from tensoralg.mixtures import DiagonalGaussianMixture, plot_mixture

rng = np.random.default_rng(3)
truth = DiagonalGaussianMixture.from_parameters(
    weights=np.full(4, 0.25),
    means=2 * rng.standard_normal((4, 8)),
    covariances=rng.uniform(0.3, 1.5, (4, 8)),
)
X, _ = truth.sample(20_000, random_state=1)
model = DiagonalGaussianMixture(4, random_state=0).fit(X)
figure = plot_mixture(model, X, columns=[0, 1, 2], truth=truth)
