"""Anderson acceleration of a fixed-point iteration x -> g(x), with steps that are kept short."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class AndersonAcceleration:
    """Extrapolate from the last few pairs of a point and its image.

    The caller decides whether an extrapolated point is good enough and calls `reject` where it is
    not: the memory is then cleared and extrapolation pauses, longer after every failure in a row.

    Parameters
    ----------
    memory : int
        Differences of pairs that enter an extrapolation.
    longest_step : float
        Largest distance, in any coordinate, of the extrapolated point from the image.
    escape_step : float
        That distance near a saddle.

    References
    ----------
    Walker and Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 49, 2011.
    Henderson and Varadhan, Damped Anderson acceleration with restarts and monotonicity control for
    accelerating EM and EM-like algorithms, J. Comput. Graph. Stat. 28, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> acceleration = AndersonAcceleration(longest_step=10.0)
    >>> contract = lambda x: 0.9 * x + 0.1
    >>> x = np.zeros(1)
    >>> for _ in range(2):
    ...     acceleration.remember(x, contract(x))
    ...     extrapolated = acceleration.extrapolate(np.ones(1), np.ones(1))
    ...     x = contract(x) if extrapolated is None else extrapolated
    >>> x.round(6)
    array([1.])
    """

    def __init__(
        self, memory: int = 5, longest_step: float = 0.5, escape_step: float = 0.15
    ) -> None:
        self.memory, self.longest_step, self.escape_step = memory, longest_step, escape_step
        self._points: list[FloatArray] = []
        self._images: list[FloatArray] = []
        self._curvatures: list[float] = []
        self._pause = 0
        self._failures = 0

    def remember(self, point: FloatArray, image: FloatArray) -> None:
        """Add a pair; the oldest is forgotten."""
        self._points = [*self._points, point][-self.memory - 1 :]
        self._images = [*self._images, image][-self.memory - 1 :]
        self._pause -= 1

    def clear(self) -> None:
        """Forget all pairs."""
        self._points, self._images = [], []

    def reject(self) -> None:
        """Note that an extrapolated point was of no use."""
        self.clear()
        self._failures = min(self._failures + 1, 4)
        self._pause = 2**self._failures

    def accept(self) -> None:
        """Note that an extrapolated point was good."""
        self._failures = 0

    @property
    def curvature(self) -> float:
        """Smallest eigenvalue of I - g' that was seen lately; 1 before any was.

        It is 1 - rate of the slowest direction; not positive near a saddle, where the iteration
        moves away from its fixed point.
        """
        return min(self._curvatures, default=1.0)

    def extrapolate(self, metric: FloatArray, unit: FloatArray) -> FloatArray | None:
        """Combine the pairs into a point with a small expected residual.

        Parameters
        ----------
        metric : (n,) array
            Weights of the squared residuals; g' is nearly symmetric in this inner product.
        unit : (n,) array
            Length of a unit step in every coordinate.

        Returns
        -------
        (n,) array or None
            None with fewer than two pairs and during a pause. Near a saddle, which solving for a
            fixed point would find, a point further along the way from the last point to its image.
        """
        if len(self._points) < 2:
            return None
        points, images = np.array(self._points), np.array(self._images)
        residuals = (images - points) * np.sqrt(metric)
        directions = residuals[-1] - residuals[:-1]
        curvature = _curvature((points[-1] - points[:-1]) * np.sqrt(metric), directions)
        self._curvatures = [*self._curvatures, curvature][-self.memory :]
        if self._pause > 0:
            return None
        if curvature <= 0.0:
            return _beyond(points[-1], images[-1], unit, self.escape_step)
        gram = directions @ directions.T
        # a touch of regularisation: late differences are nearly parallel
        gram[np.diag_indices_from(gram)] += 1e-8 * np.trace(gram) / len(gram)
        mixing = np.linalg.lstsq(gram, directions @ residuals[-1], rcond=None)[0]
        step = -mixing @ (images[-1] - images[:-1])
        longest = float(np.max(np.abs(step) / unit))
        if longest > self.longest_step:
            step *= self.longest_step / longest
        result: FloatArray = images[-1] + step
        return result


def _beyond(
    point: FloatArray, image: FloatArray, unit: FloatArray, length: float
) -> FloatArray | None:
    step = image - point
    longest = float(np.max(np.abs(step) / unit))
    return image + (length / longest) * step if longest > 0.0 else None


def _curvature(steps: FloatArray, changes: FloatArray) -> float:
    """Rayleigh-Ritz: smallest eigenvalue of I - g' on the span of the steps.

    `changes` are those of the residual g(x) - x along the `steps`, both (k, n).
    """
    left, singular, basis = np.linalg.svd(steps, full_matrices=False)
    kept = singular > 1e-4 * singular[0]
    if not kept.any():
        return 1.0
    image = -(left[:, kept] / singular[kept]).T @ changes @ basis[kept].T
    return float(np.linalg.eigvalsh(0.5 * (image + image.T))[0])
