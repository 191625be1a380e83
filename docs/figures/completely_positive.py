"""A family of matrices that enters the completely positive cone, and its distance from it."""

import matplotlib.pyplot as plt
import numpy as np

from tensoralg.completely_positive import closest, detect


def cycle(last):
    """Return a doubly nonnegative matrix; completely positive from last = 7 on."""
    rows = [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, last]]
    return np.array(rows, dtype=float)


lasts = np.arange(3.0, 9.0, 0.5)
verdicts = [detect(cycle(last)).verdict.value for last in lasts]
nearest = [closest(cycle(last), rng=0) for last in lasts]
figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
axes.plot(lasts, [found.value for found in nearest], "-", color="#555555", zorder=1)
for verdict, colour in (("not completely positive", "#D55E00"), ("completely positive", "#009E73")):
    chosen = [k for k, found in enumerate(verdicts) if found == verdict]
    axes.scatter(lasts[chosen], [nearest[k].value for k in chosen], color=colour, label=verdict)
axes.set(xlabel="last diagonal entry", ylabel="distance from the cone")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
