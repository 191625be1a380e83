"""The small tensor of the three-block read-out: its components and the functionals dual to them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.joint_eigenvectors import joint_eigenvectors
from tensoralg.solvers.polyadic_least_squares import polyadic_least_squares

__all__ = ["BlockFunctionals", "block_functionals"]

Array = NDArray[Any]

_STARTS = 8  # eigenvectors of different combinations; about one in ten leads to a local optimum
_STEPS, _TOLERANCE = 200, 1e-9  # of a fit
_SAME = 1e-4  # two misfits that differ by less are one optimum
_TIMES = 3  # that the best optimum must be found, if it is not exact
_EXACT = 1e-9  # a misfit that leaves nothing to find


@dataclass(frozen=True, slots=True, eq=False)
class BlockFunctionals:
    """Functionals of the features of three blocks that tell the components apart.

    Attributes
    ----------
    matrices : tuple of three ndarray of shape (r, r)
        Row s of each: the coefficients of l_s in the features of that block, whose expectation is
        1 in component s and 0 in the others.
    weights : ndarray of shape (r,)
        Weights of the components.
    n_complex : int
        Eigenvalues that were not real.
    """

    matrices: tuple[Array, Array, Array]
    weights: Array
    n_complex: int


def block_functionals(
    tensor: ArrayLike, *, rng: int | np.random.Generator | None = None
) -> BlockFunctionals:
    """Decompose ``E[a (x) b (x) c]``, whose features start with the constant 1.

    With exact moments ``tensor = sum_s w_s a_s (x) b_s (x) c_s``, the three feature vectors of
    every component starting with 1. The slices along the third axis, times the inverse of the
    first slice, share the eigenvectors a_s; least squares then fits all three factors. Several
    combinations of the slices give several starts, of which the best fit is kept.

    Parameters
    ----------
    tensor : array_like of shape (r, r, r)
        Third-order moment of the three sets of r features.
    rng : int, Generator or None
        Source of the random combinations of slices.

    Returns
    -------
    BlockFunctionals
        In the same order of the components for all three blocks.

    Raises
    ------
    ShapeError
        The tensor is no cube.
    ValueError
        An entry is NaN or infinite.

    Examples
    --------
    >>> import numpy as np
    >>> a, b, c = (np.array([[1.0, x], [1.0, y]]) for x, y in ((1, 2), (0, 3), (-1, 1)))
    >>> tensor = np.einsum("s,si,sj,sk->ijk", [0.25, 0.75], a, b, c)
    >>> found = block_functionals(tensor, rng=0)
    >>> np.round(np.sort(found.weights), 9).tolist()
    [0.25, 0.75]
    >>> order = np.argsort(found.weights)
    >>> bool(np.allclose(found.matrices[0][order] @ a.T, np.eye(2)))
    True
    """
    t = np.asarray(tensor, dtype=np.float64)
    if t.ndim != 3 or len(set(t.shape)) != 1:
        raise ShapeError(f"tensor must have shape (r, r, r); got {t.shape}")
    if not np.isfinite(t).all():
        raise ValueError("tensor must be finite; it holds NaN or inf")
    factors, n_complex = _best_fit(t, np.random.default_rng(rng))
    weights = np.ones(len(t))
    matrices = []
    for factor in factors:
        size = _signed_floor(factor[0], 1e-12 * np.abs(factor).max(axis=0))
        weights = weights * size
        matrices.append(np.linalg.pinv(factor / size))
    first, second, third = matrices
    return BlockFunctionals((first, second, third), weights, n_complex)


def _best_fit(t: Array, rng: np.random.Generator) -> tuple[list[Array], int]:
    """Fit all factors from several starts, until the best fit was found three times.

    Noise is alike in all features, so that the fit is that of the tensor as it is, while the
    eigenvectors need features of one size.
    """
    scales = [_feature_scales(t, axis) for axis in range(3)]
    scaled = t / np.einsum("i,j,k->ijk", *scales)
    best, times, found = np.inf, 0, ([np.eye(len(t))] * 3, 0)
    for _ in range(_STARTS):
        start, n_complex = _eigenvector_factors(scaled, rng)
        start = [f * scale[:, None] for f, scale in zip(start, scales, strict=True)]
        fit = polyadic_least_squares(t, start, max_iter=_STEPS, tol=_TOLERANCE)
        misfit = 1.0 - float(fit.fit)
        # the first of equal fits is kept: rounding must not choose
        if misfit < (1.0 - _SAME) * best:
            best, times, found = misfit, 1, ([np.asarray(f) for f in fit.factors], n_complex)
        elif misfit <= (1.0 + _SAME) * best:
            times += 1
        if times == _TIMES or best < _EXACT:
            break
    return found


def _feature_scales(t: Array, axis: int) -> Array:
    """Size of the slices along one axis: weak features count as much as strong ones."""
    sizes = np.sqrt((np.moveaxis(t, axis, 0).reshape(len(t), -1) ** 2).sum(axis=1))
    return np.asarray(np.maximum(sizes, 1e-12 * max(float(sizes.max()), 1e-300)))


def _eigenvector_factors(t: Array, rng: np.random.Generator) -> tuple[list[Array], int]:
    """Factors from the common eigenvectors of the slices; the third holds the sizes."""
    inverse = np.linalg.pinv(t[:, :, 0], rcond=1e-10)
    slices = np.moveaxis(t, 2, 0) @ inverse
    vectors, _ = joint_eigenvectors(slices, rng=rng, n_draws=20)
    sizes = np.linalg.norm(vectors, axis=0)
    n_complex = int(np.sum(np.linalg.norm(vectors.imag, axis=0) > 1e-8 * sizes))
    # a + b and a - b span the same as a pair a +- ib
    first = np.asarray(vectors.real + vectors.imag)
    rest = np.tensordot(np.linalg.pinv(first), t, axes=1)
    left, singular, right = np.linalg.svd(rest)
    second = left[:, :, 0].T
    third = (singular[:, 0, None] * right[:, 0]).T
    return [first, second, third], n_complex


def _signed_floor(values: Array, floor: Array) -> Array:
    """Keep values away from 0."""
    return np.where(np.abs(values) < floor, np.maximum(floor, 1e-300), values)
