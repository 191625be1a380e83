"""Generating polynomials beyond the flattenings: commuting conditions as least squares.

The first r monomials of the dehomogenised ring index the rows of a matrix G, the monomials on
their border its columns. The entries of the tensor give linear equations for G; when they leave
freedom, the multiplication matrices made of G must commute, which is a system of quadratic
equations in the free parameters. Every nonsingular solution is one decomposition of rank r.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.core.indices import multi_indices
from tensoralg.solvers.joint_eigenvectors import joint_eigenvectors
from tensoralg.solvers.symmetric_flattening import change_variables

__all__ = ["extension_points"]

Array = NDArray[Any]
Monomial = tuple[int, ...]

_LARGEST_FREEDOM = 300
_STEPS = 120


def extension_points(
    entries: Array,
    order: int,
    dimension: int,
    rank: int,
    *,
    rng: int | np.random.Generator | None = None,
) -> Array | None:
    """Points of a rank-r decomposition from a random start of the commuting conditions.

    Parameters
    ----------
    entries : ndarray, shape (C(n+m-1, m),)
        Entries at the sorted multi-indices, lexicographic.
    order, dimension, rank : int
        m, n >= 3 and r.
    rng : int, Generator or None
        Source of the rotation that makes the first coordinates of the points nonzero, and of the
        start.

    Returns
    -------
    ndarray of shape (r, n), or None
        Points up to scale, real or complex; None when the free parameters are too many, or the
        r monomials reach the degree m, so that the tensor says too little about G.

    References
    ----------
    .. [1] J. Nie, "Generating polynomials and symmetric tensor decompositions", Foundations of
       Computational Mathematics 17 (2017), section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.core.indices import multi_indices
    >>> entries = np.random.default_rng(0).standard_normal((4, 3))[:, multi_indices(3, 3)]
    >>> extension_points(entries.prod(axis=2).sum(axis=0), 3, 3, 4, rng=0).shape
    (4, 3)
    """
    generator = np.random.default_rng(rng)
    rotation = np.linalg.qr(generator.standard_normal((dimension, dimension)))[0]
    turned = change_variables(entries, order, dimension, rotation)
    table = {
        tuple(row): value
        for row, value in zip(
            multi_indices(dimension, order).tolist(), turned.tolist(), strict=True
        )
    }
    basis, border = _monomials(dimension, rank)
    if len(basis[-1]) >= order:
        return None
    particular, freedom = [], []
    for alpha in border:
        solution, null = _linear_part(table, order, dimension, basis, alpha)
        particular.append(solution)
        freedom.append(null)
    if sum(null.shape[1] for null in freedom) > _LARGEST_FREEDOM:
        return None
    matrices, directions = _multiplication_pencils(dimension, basis, border, particular, freedom)
    found = _commute(matrices, directions, generator)
    _, values = joint_eigenvectors(found.transpose(0, 2, 1), rng=generator)
    points = np.column_stack([np.ones(rank), values.T])
    return np.asarray(points @ rotation.T)


def _monomials(dimension: int, rank: int) -> tuple[list[Monomial], list[Monomial]]:
    """List the first r monomials in the variables 1 .. n-1 by degree, and their border."""
    basis: list[Monomial] = []
    degree = 0
    while len(basis) < rank:
        rows = multi_indices(dimension - 1, degree) + 1
        basis += [tuple(row) for row in rows.tolist()]
        degree += 1
    basis = basis[:rank]
    inside = set(basis)
    raised = {tuple(sorted((*beta, i))) for beta in basis for i in range(1, dimension)}
    return basis, sorted(raised - inside, key=lambda alpha: (len(alpha), alpha))


def _linear_part(
    table: dict[Monomial, float],
    order: int,
    dimension: int,
    basis: list[Monomial],
    alpha: Monomial,
) -> tuple[Array, Array]:
    """Solve ``sum_beta G(beta, alpha) F[beta + gamma] = F[alpha + gamma]`` over all gamma."""
    room = order - max(len(alpha), len(basis[-1]))
    if room < 0:
        return np.zeros(len(basis)), np.eye(len(basis))

    def entry(first: Monomial, second: Monomial) -> float:
        joined = first + second
        return table[tuple(sorted((0,) * (order - len(joined)) + joined))]

    # the variable 0 stands for lower degrees
    tests = [tuple(i for i in g if i) for g in multi_indices(dimension, room).tolist()]
    system = np.array([[entry(beta, gamma) for beta in basis] for gamma in tests])
    right = np.array([entry(alpha, gamma) for gamma in tests])
    left, singular, rows = np.linalg.svd(system)
    count = int(np.sum(singular > 1e-10 * max(singular[0], 1e-300)))
    solution = rows[:count].T @ ((left[:, :count].T @ right) / singular[:count])
    return solution, rows[count:].T


def _multiplication_pencils(
    dimension: int,
    basis: list[Monomial],
    border: list[Monomial],
    particular: list[Array],
    freedom: list[Array],
) -> tuple[Array, Array]:
    """Matrices ``M_i`` at zero parameters, (n-1, r, r), and their derivatives, (q, n-1, r, r)."""
    r = len(basis)
    offsets = np.concatenate([[0], np.cumsum([null.shape[1] for null in freedom])])
    matrices = np.zeros((dimension - 1, r, r))
    directions = np.zeros((int(offsets[-1]), dimension - 1, r, r))
    inside = {beta: k for k, beta in enumerate(basis)}
    outside = {alpha: k for k, alpha in enumerate(border)}
    for i in range(1, dimension):
        for column, beta in enumerate(basis):
            raised = tuple(sorted((*beta, i)))
            if raised in inside:
                matrices[i - 1, inside[raised], column] = 1.0
                continue
            k = outside[raised]
            matrices[i - 1, :, column] = particular[k]
            directions[offsets[k] : offsets[k + 1], i - 1, :, column] = freedom[k].T
    return matrices, directions


def _commute(matrices: Array, directions: Array, generator: np.random.Generator) -> Array:
    """Choose the parameters so that the matrices commute, by Levenberg-Marquardt."""
    parameters = generator.standard_normal(len(directions))
    current = matrices + np.tensordot(parameters, directions, axes=1)
    residual = _commutators(current, current)
    cost, damping, growth = float(residual @ residual), 1e-2, 2.0
    normal = gradient = np.zeros(0)
    fresh = True
    for _ in range(_STEPS if len(directions) else 0):
        if cost < 1e-26 or damping > 1e10:
            break
        if fresh:
            # the commutators are bilinear
            jacobian = _commutators(directions, current) + _commutators(current, directions)
            normal, gradient = jacobian @ jacobian.T, jacobian @ residual
        damped = normal + damping * np.diag(np.maximum(np.diag(normal), 1e-6 * normal.max()))
        step = -np.linalg.solve(damped, gradient)
        trial = current + np.tensordot(step, directions, axes=1)
        residual_there = _commutators(trial, trial)
        cost_there = float(residual_there @ residual_there)
        fresh = cost_there < cost
        if fresh:
            current, residual, cost = trial, residual_there, cost_there
            damping, growth = max(damping / 5, 1e-14), 2.0
        else:
            damping, growth = damping * growth, growth * 2
    return np.asarray(current)


def _commutators(a: Array, b: Array) -> Array:
    """All products ``a_i b_j - b_j a_i`` with i < j, one row for each leading index."""
    i, j = np.triu_indices(a.shape[-3], 1)
    first_a, second_b = a[..., i, :, :], b[..., j, :, :]
    product = first_a @ second_b - second_b @ first_a
    return np.asarray(product.reshape(*product.shape[:-3], -1))
