"""Common eigenvectors of nearly commuting matrices, from the best random combination."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["joint_eigenvectors"]

Array = NDArray[Any]


def joint_eigenvectors(
    matrices: Array, *, rng: int | np.random.Generator | None = None, n_draws: int = 10
) -> tuple[Array, Array]:
    """Find the common eigenvectors of matrices that commute up to noise.

    A random combination has simple eigenvalues when the joint eigenvalues are distinct. Of several
    combinations, the one with the fewest complex pairs is kept, and among equals the one whose
    eigenvectors are best conditioned relative to the gaps of its eigenvalues.

    Parameters
    ----------
    matrices : array_like, shape (J, r, r)
        Real or complex square matrices, diagonalisable by one basis.
    rng : int, Generator or None
        Source of the combinations.
    n_draws : int, default 10
        How many combinations are tried.

    Returns
    -------
    vectors : ndarray, shape (r, r)
        The eigenvectors as unit columns; real when no complex pair occurred.
    values : ndarray, shape (J, r)
        Eigenvalue of every matrix on every eigenvector.

    References
    ----------
    .. [1] R. M. Corless, P. M. Gianni, B. M. Trager, "A reordered Schur factorization method for
       zero-dimensional polynomial systems with multiple roots", ISSAC 1997.

    Examples
    --------
    >>> import numpy as np
    >>> basis = np.array([[1.0, 1.0], [0.0, 1.0]])
    >>> pair = [basis @ np.diag(x) @ np.linalg.inv(basis) for x in ([1.0, 2.0], [3.0, 5.0])]
    >>> vectors, values = joint_eigenvectors(np.array(pair), rng=0)
    >>> np.round(values[:, np.argsort(values[0])], 9).tolist()
    [[1.0, 2.0], [3.0, 5.0]]
    """
    stack = np.asarray(matrices)
    generator = np.random.default_rng(rng)
    r = stack.shape[-1]
    xi = generator.standard_normal((n_draws, len(stack)))
    eigenvalues, candidates = np.linalg.eig(np.tensordot(xi, stack, axes=1))
    size = np.maximum(np.abs(eigenvalues).max(axis=1, initial=0.0), 1e-300)
    n_complex = np.sum(np.abs(eigenvalues.imag) > 1e-10 * size[:, None], axis=1)
    (real,) = np.nonzero(n_complex == n_complex.min())  # or the fewest pairs
    distance = np.abs(eigenvalues[real, :, None] - eigenvalues[real, None, :])
    distance += np.diag([np.inf] * r)
    gap = np.maximum(distance.min(axis=(1, 2)) / size[real], 1e-300) if r > 1 else 1.0
    vectors = _without_zeros(candidates[real])
    best = np.argmin(np.linalg.cond(vectors) / gap)
    vectors = _without_zeros(vectors[best])
    left = np.linalg.pinv(vectors)
    values = np.einsum("si,jik,ks->js", left, stack, vectors, optimize=True)
    return vectors, values


def _without_zeros(array: Array) -> Array:
    """Real numbers where every imaginary part is 0: one complex draw makes all of them complex."""
    return array if array.imag.any() else array.real
