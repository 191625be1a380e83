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
    best: tuple[int, float] | None = None
    vectors = np.eye(r)
    for _ in range(n_draws):
        xi = generator.standard_normal(len(stack))
        eigenvalues, candidate = np.linalg.eig(np.tensordot(xi, stack, axes=1))
        size = max(float(np.abs(eigenvalues).max(initial=0.0)), 1e-300)
        n_complex = int(np.sum(np.abs(eigenvalues.imag) > 1e-10 * size))
        distance = np.abs(eigenvalues[:, None] - eigenvalues[None, :]) + np.diag([np.inf] * r)
        gap = max(float(distance.min()) / size, 1e-300) if r > 1 else 1.0
        quality = (n_complex, float(np.linalg.cond(candidate)) / gap)
        if best is None or quality < best:
            best, vectors = quality, candidate
    left = np.linalg.pinv(vectors)
    values = np.einsum("si,jik,ks->js", left, stack, vectors, optimize=True)
    return vectors, values
