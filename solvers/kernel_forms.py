"""Forms that vanish on every atom of a completely positive tensor, read off its singular blocks.

The entries ``A_(S + b + c)``, with S a set of indices and b, c of degree m, ``|S| + 2 m = d``, form
a matrix: for atoms ``u_s`` it is ``sum_s u_s^S v(u_s) v(u_s)'`` with v the monomials of degree m.
Where a vector q is in its kernel, ``u_s^S q(u_s)^2 = 0`` for every atom. With ``u = z * z`` these
are the equations ``z^S q(z * z) = 0``, forms of degree d in z whose slopes do not vanish at a
coordinate 0: Newton's method reaches the boundary of the orthant quadratically. So the atoms of a
tensor on the boundary of the cone are confined to a variety that is known beforehand.

References
----------
.. [1] J. Nie, "The A-truncated K-moment problem", Foundations of Computational Mathematics 14
   (2014).
.. [2] R. E. Curto, L. A. Fialkow, "Recursiveness, positivity, and truncated moment problems",
   Houston Journal of Mathematics 17 (1991).
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.index_maps import (
    catalecticant_positions,
    insertion_positions,
    listed_multiplicities,
)
from tensoralg.core.indices import multi_indices, number_of_multi_indices, rank_multi_indices
from tensoralg.core.monomials import evaluate_monomials
from tensoralg.solvers.power_sums import PowerSum

__all__ = ["KernelForms", "kernel_forms"]

Array = NDArray[Any]

_LARGEST_BLOCK = 300  # rows of a block whose eigenvectors are computed
_STEPS = 30


@dataclass(frozen=True, slots=True, eq=False)
class KernelForms:
    """Forms of degree d in the roots ``z`` of the atoms ``z * z``.

    Attributes
    ----------
    indices, lower : ndarray of int
        Sorted multi-indices of order d and d-1 in n indices.
    coefficients : ndarray, shape (C(n+d-1, d), f)
        One form in each column, of norm about 1.
    slopes : ndarray, shape (C(n+d-2, d-1), n * f)
        Coefficients of the derivatives: first by the variable, then by the form.
    """

    indices: Array
    lower: Array
    coefficients: Array
    slopes: Array

    @property
    def count(self) -> int:
        """Number f of forms."""
        return int(self.coefficients.shape[1])

    def values(self, roots: Array) -> Array:
        """Evaluate the forms.

        Parameters
        ----------
        roots : ndarray, shape (r, n)
            Points.

        Returns
        -------
        ndarray, shape (r, f)
            One row for each point.
        """
        return np.asarray(evaluate_monomials(roots, self.indices) @ self.coefficients)

    def jacobian(self, roots: Array) -> Array:
        """Differentiate the forms.

        Parameters
        ----------
        roots : ndarray, shape (r, n)
            Points.

        Returns
        -------
        ndarray, shape (r, f, n)
            Derivatives by the coordinates.
        """
        flat = evaluate_monomials(roots, self.lower) @ self.slopes
        return np.asarray(flat.reshape(len(roots), -1, self.count).transpose(0, 2, 1))

    def project(self, roots: Array, *, n_steps: int = _STEPS) -> tuple[Array, Array]:
        """Move points to the variety by damped Gauss-Newton steps, all of them at once.

        Parameters
        ----------
        roots : ndarray, shape (r, n)
            Points; none zero. Coordinates that are 0 stay 0.
        n_steps : int, default 30
            Number of steps.

        Returns
        -------
        roots : ndarray, shape (r, n)
            Nonnegative, of the same lengths as the start.
        distance : ndarray, shape (r,)
            Norms of the forms at the unit vectors; small where the variety was reached.
        """
        lengths = np.linalg.norm(roots, axis=1, keepdims=True)
        z, n = roots / lengths, roots.shape[1]
        free = roots != 0
        values = self.values(z)
        sizes = np.linalg.norm(values, axis=1)
        damping = np.full(len(z), 1e-2)
        for _ in range(n_steps):
            slopes = self.jacobian(z) * free[:, None, :]
            radial = z[:, :, None] * z[:, None, :]  # keeps the length, so that z does not go to 0
            normal = slopes.transpose(0, 2, 1) @ slopes + radial
            shift = (damping * np.minimum(sizes, 1.0) + 1e-15)[:, None, None] * np.eye(n)
            right = (slopes.transpose(0, 2, 1) @ values[:, :, None]) * free[:, :, None]
            trial = np.abs(z - np.linalg.solve(normal + shift, right)[:, :, 0])
            trial /= np.linalg.norm(trial, axis=1, keepdims=True)
            new_values = self.values(trial)
            new_sizes = np.linalg.norm(new_values, axis=1)
            better = new_sizes < sizes
            z, values = (
                np.where(better[:, None], trial, z),
                np.where(better[:, None], new_values, values),
            )
            damping = np.where(better, damping / 5, damping * 4)
            done = np.where(better, sizes - new_sizes, 0.0) <= 1e-16
            sizes = np.where(better, new_sizes, sizes)
            if (done & (sizes < 1e-12)).all():
                break
        return z * lengths, sizes

    def tangents(self, roots: Array, *, tolerance: float = 1e-5) -> Array:
        """Project to the directions in which no form changes.

        Parameters
        ----------
        roots : ndarray, shape (r, n)
            Points; none zero.
        tolerance : float, default 1e-5
            Singular values of a Jacobian above this, at the unit vectors, count as changes.

        Returns
        -------
        ndarray, shape (r, n, n)
            One projector for each point.
        """
        units = roots / np.linalg.norm(roots, axis=1, keepdims=True)
        _, sizes, right = np.linalg.svd(self.jacobian(units), full_matrices=True)
        across = np.zeros(roots.shape)
        across[:, : sizes.shape[1]] = sizes > tolerance
        n = roots.shape[1]
        return np.asarray(np.eye(n) - np.einsum("sai,sa,saj->sij", right, across, right))


def kernel_forms(problem: PowerSum, *, tolerance: float = 1e-13) -> KernelForms:
    """Read the forms off all known blocks of a tensor.

    Parameters
    ----------
    problem : PowerSum
        The equations.
    tolerance : float, default 1e-13
        Eigenvalues of a block below this times its largest count as zero.

    Returns
    -------
    KernelForms
        Possibly none. A kernel is judged in float64 and may be false: atoms that are found with
        its help must rebuild the tensor.

    Examples
    --------
    The atoms of this matrix satisfy ``u_1 = 2 u_2``.

    >>> from tensoralg.solvers.power_sums import power_sum
    >>> forms = kernel_forms(power_sum([4.0, 2.0, 1.0], 2, 2))
    >>> forms.count, bool(abs(forms.values(np.sqrt([[2.0, 1.0]]))).max() < 1e-15)
    (1, True)
    """
    n, d = problem.dimension, problem.order
    columns = [np.zeros((len(problem.values), 0))]
    for degree in range(d // 2, 0, -1):
        if number_of_multi_indices(n, degree) > _LARGEST_BLOCK:
            continue
        monomials = multi_indices(n, degree)
        scale = np.sqrt(listed_multiplicities(n, degree))
        for factor in itertools.combinations(range(n), d - 2 * degree):
            positions = catalecticant_positions(n, 2 * degree, degree)
            for k, index in enumerate(factor):
                positions = insertion_positions(n, 2 * degree + k + 1)[index][positions]
            kernel = _kernel(problem.values[positions] * np.outer(scale, scale), tolerance)
            doubled = np.concatenate(
                [np.broadcast_to(factor, (len(monomials), len(factor))), monomials, monomials],
                axis=1,
            ).astype(np.int64)
            places = rank_multi_indices(np.sort(doubled, axis=1), n)
            forms = np.zeros((len(problem.values), kernel.shape[1]))
            forms[places] = kernel * scale[:, None]
            columns.append(forms)
    coefficients = np.concatenate(columns, axis=1)
    counts = problem.exponents / problem.root[problem.raised]
    slopes = counts[:, :, None] * coefficients[problem.raised]  # (n, lower, f)
    flat = slopes.transpose(1, 0, 2).reshape(len(problem.lower), -1)
    return KernelForms(problem.indices, problem.lower, coefficients, flat)


def _kernel(matrix: Array, tolerance: float) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray(vectors[:, values <= tolerance * max(values[-1], 0.0)])
