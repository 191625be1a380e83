"""How many terms? Fit and core consistency over the rank, of a tensor with three terms."""

import numpy as np

from tensoralg import KruskalTensor
from tensoralg.polyadic import rank_scan

rng = np.random.default_rng(0)
truth = KruskalTensor([3.0, 2.0, 1.0], [rng.standard_normal((n, 3)) for n in (30, 20, 10)])
signal = truth.to_dense()
X = signal + 0.1 * signal.std() * rng.standard_normal(signal.shape)
figure = rank_scan(X, range(1, 7), rng=0).plot()
