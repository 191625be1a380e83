"""Inner products of the derivatives of implicit moments: Gauss-Newton without a Jacobian.

The unknowns are weights w_s and points z_s; the moments ``sum_s w_s z_s^a`` over square-free a of
degree q, each times the root of a factor C_q, have a Jacobian J of ``sum_q C(d, q)`` rows. With
``k(x, z) = sum_q C_q e_q(x * z)``, the entries of J^T J are k and its derivatives at pairs of
points. All follow from the power sums ``p_a(s, t) = sum_j (z_sj z_tj)^a`` and from

    F_a = sum_q C_q e_{q-a},        dF_b / dp_a = (-1)^(a-1) F_{a+b} / a,

so that the product of J^T J with a vector costs O(r^2 d m^2), whatever the number of moments.
"""

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.implicit_sums import elementary_from_powers

__all__ = ["ImplicitGram", "balanced_factors"]

Array = NDArray[np.float64]

_MASS = 9.0  # factor of degree 0 where degrees are balanced: the mass is known without noise
_CELLS = 2**22  # numbers in a block of r x r matrices


class ImplicitGram:
    """The matrix J^T J at given weights and points.

    Parameters
    ----------
    weights : ndarray of shape (r,)
        Weights.
    points : ndarray of shape (r, d)
        Points.
    factors : ndarray of shape (m + 1,)
        Factor C_q >= 0 of the squares of the moments of each degree.

    Attributes
    ----------
    kernels : list of ndarray of shape (r, r)
        F_0 .. F_m; F_0 holds the inner products k(z_s, z_t), and F_1 dominates their derivatives.

    Examples
    --------
    >>> import numpy as np
    >>> gram = ImplicitGram(np.array([0.5]), np.array([[2.0]]), np.ones(2))
    >>> [part.tolist() for part in gram.product(np.array([1.0]), np.array([[0.0]]))]
    [[5.0], [[1.0]]]
    """

    def __init__(self, weights: Array, points: Array, factors: Array) -> None:
        self.weights, self.points = weights, points
        order = len(factors) - 1
        self._powers = [np.ones_like(points)]
        for _ in range(order):
            self._powers.append(self._powers[-1] * points)
        e = elementary_from_powers([p @ p.T for p in self._powers[1:]])
        self.kernels: list[Array] = [
            np.asarray(sum(factors[q] * e[q - a] for q in range(a, order + 1)))
            for a in range(order + 1)
        ]

    def product(self, by_weight: Array, by_point: Array) -> tuple[Array, Array]:
        """Multiply J^T J by a direction.

        Parameters
        ----------
        by_weight : ndarray of shape (r,)
            Change of the weights.
        by_point : ndarray of shape (r, d)
            Change of the points.

        Returns
        -------
        ndarray of shape (r,), ndarray of shape (r, d)
            The product, split likewise.
        """
        order, power, F = len(self._powers) - 1, self._powers, self.kernels
        # (-1)^(a-1) dp_a / a of the pair (t, s) as z_s moves, times w_s
        change = [
            (-1.0) ** (a - 1) * (power[a] @ (power[a - 1] * by_point).T) * self.weights
            for a in range(1, order + 1)
        ]
        first = F[0] @ by_weight
        second = np.zeros_like(self.points)
        for b in range(1, order + 1):
            first += (F[b] * change[b - 1]).sum(axis=1)
            moved = F[b] * by_weight
            for a in range(1, order - b + 1):
                moved += F[a + b] * change[a - 1]
            part = moved @ power[b] + b * ((F[b] * self.weights) @ (power[b - 1] * by_point))
            second += (-1.0) ** (b - 1) * power[b - 1] * part
        return first, self.weights[:, None] * second

    def solve_columns(self, reads: Array) -> Array:
        """Divide averages of a function of one coordinate among the components.

        Parameters
        ----------
        reads : ndarray of shape (r, d)
            ``E[g(x_j) sum_q C_q e_{q-1}(x * z_s without coordinate j)]``, as `implicit_sums` reads
            it for the factors C_1 .. C_m.

        Returns
        -------
        ndarray of shape (r, d)
            The averages of g(x_j) in every component that explain them.
        """
        r, d = self.points.shape
        found = np.empty((r, d))
        size = max(1, _CELLS // (r * r))
        for begin in range(0, d, size):
            z = self.points[:, begin : begin + size].T
            c = z[:, :, None] * z[:, None, :]
            matrix = np.zeros_like(c)
            for F in reversed(self.kernels[1:]):
                matrix = F - c * matrix
            matrix *= self.weights
            trace = np.abs(np.trace(matrix, axis1=1, axis2=2))[:, None, None]
            matrix += (1e-14 * trace + 1e-300) * np.eye(r)
            right = reads[:, begin : begin + size].T[:, :, None]
            found[:, begin : begin + size] = np.linalg.solve(matrix, right)[:, :, 0].T
        return found


def balanced_factors(weights: Array, points: Array, order: int) -> Array:
    """Find factors that make every degree count alike.

    Parameters
    ----------
    weights : ndarray of shape (r,)
        Weights.
    points : ndarray of shape (r, d)
        Points.
    order : int
        Highest degree m.

    Returns
    -------
    ndarray of shape (m + 1,)
        ``1 / sum_s w_s e_q(z_s * z_s)`` for q >= 1; 9 for the mass.

    Examples
    --------
    >>> import numpy as np
    >>> balanced_factors(np.array([0.5, 0.5]), np.array([[1.0, 1.0], [-1.0, -1.0]]), 2).tolist()
    [9.0, 0.5, 1.0]
    """
    power = [points ** (2 * k) for k in range(1, order + 1)]
    e = elementary_from_powers([p.sum(axis=1) for p in power])
    size = np.array([float(np.abs(weights) @ np.abs(part)) for part in e])
    factors = 1.0 / np.maximum(size, 1e-300)
    factors[0] = _MASS
    return np.asarray(factors)
