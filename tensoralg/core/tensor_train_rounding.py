"""Rounding: smaller ranks for a tensor train, within a tolerance, a rank or a size.

A train is made right-orthogonal, then a sweep of singular value decompositions from left to right
cuts every bond [1]_. The errors of the bonds are orthogonal to each other, so their squares add up
exactly. A first sweep without cuts gives the singular values of all bonds; a tolerance is then
spent where it frees most entries, not in equal parts as in [1]_.

References
----------
.. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011), algorithm 2.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import array_api_compat

from tensoralg.core.tensor_train_shapes import cap_ranks
from tensoralg.core.tensor_train_truncation import (
    allocate_ranks,
    check_tolerance,
    droppable_square,
    kept_rank,
    tolerated_ranks,
)
from tensoralg.core.tensor_train_unfoldings import (
    adjoint,
    as_float,
    left_unfolding,
    right_unfolding,
    share_exponent,
    times_power_of_two,
    unit_scale,
)
from tensoralg.core.validation import nonnegative_integer

__all__ = [
    "allocate_ranks",
    "bond_singular_values",
    "check_tolerance",
    "round_cores",
]


def round_cores(
    cores: Sequence[Any],
    *,
    rtol: float | None = None,
    ranks: int | Sequence[int] | None = None,
    max_parameters: int | None = None,
    balance: bool = False,
) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Make the ranks of a train smaller.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train, of the matrix form or not. Cores in half precision are rounded in float32.
    rtol : float, optional
        Largest error in the Frobenius norm, relative to the tensor.
    ranks : int or sequence of int, optional
        Largest ranks: one for every bond, d - 1 for the inner bonds or d + 1 for all.
    max_parameters : int, optional
        Largest number of entries of all cores; at least that of all ranks 1 is needed. Singular
        values are given up in the order of what they contribute for every entry they cost.
    balance : bool, default False
        Spread the sizes: every bond's singular values are shared between the cores beside it and
        all cores have the same root mean square. Otherwise all cores but the last are
        left-orthogonal.

    Returns
    -------
    cores : list of array, shapes (r'_{k-1}, ..., r'_k)
        The rounded train. Without a tolerance only what cannot be told from rounding errors of
        the dtype is dropped before the largest ranks apply. Ranks stay at least 1.
    maps : list of (array, array), shapes (r'_{k-1}, r_{k-1}) and (r_k, r'_k)
        Pairs (L_k, R_k) with ``new_core_k = L_k . core_k . R_k`` up to rounding error, to carry
        along what belongs to the cores, such as the moments of an optimizer. At every bond
        ``L_{k+1} . R_k`` is the identity. Where such a change of scale is beyond the dtype's
        range, they are infinite or zero.

    Raises
    ------
    TypeError
        A tolerance that is no number, or a number of parameters that is no integer.
    ValueError
        A negative or NaN tolerance, ranks below 1, a number of parameters that not even ranks 1
        meet, or a core with a NaN or infinite entry.

    Examples
    --------
    >>> import numpy as np
    >>> twice = [np.ones((1, 3, 2)), np.ones((2, 3, 1))]
    >>> cores, maps = round_cores(twice)
    >>> [core.shape for core in cores], [(L.shape, R.shape) for L, R in maps]
    ([(1, 3, 1), (1, 3, 1)], [((1, 1), (2, 1)), ((1, 2), (1, 1))])
    """
    rtol = check_tolerance(rtol)
    if max_parameters is not None:
        max_parameters = nonnegative_integer("max_parameters", max_parameters)
    xp = array_api_compat.array_namespace(*cores)
    sizes = [math.prod(core.shape[1:-1]) for core in cores]
    caps = list(cap_ranks(sizes, ranks))
    own = cores[0].dtype
    cores = _computing(xp, cores)
    if 0 in sizes:
        return _empty(xp, cores, own)
    sweep = _right_sweep(xp, cores)
    reserves = None
    if rtol is not None or max_parameters is not None:
        spectra = [[as_float(s) for s in bond] for bond in _spectra(xp, sweep)]
        if max_parameters is not None:
            (limits,) = allocate_ranks([spectra], [sizes], max_parameters)
            caps = [min(a, b) for a, b in zip(caps, limits, strict=True)]
        if rtol is not None:
            caps, reserves = tolerated_ranks(spectra, sizes, caps, rtol)
    new, maps, values = _cut(xp, sweep, caps, reserves)
    if cap_ranks(sizes, [core.shape[-1] for core in new[:-1]]) != _bonds(new):
        # a bond was cut to less than the one before it needs: that one has superfluous ranks
        new, more, values = _cut(xp, _right_sweep(xp, new), cap_ranks(sizes, _bonds(new)), None)
        maps = [(c @ a, b @ d) for (a, b), (c, d) in zip(maps, more, strict=True)]
    if balance and bool(xp.any(new[-1] != 0)):
        new, maps = _balanced(xp, new, maps, values)
    cast = [xp.astype(core, own, copy=False) for core in new]
    return cast, [tuple(xp.astype(m, own, copy=False) for m in pair) for pair in maps]


def bond_singular_values(cores: Sequence[Any]) -> list[Any]:
    """Singular values of all unfoldings of the tensor.

    Parameters
    ----------
    cores : sequence of array, shapes (r_{k-1}, ..., r_k)
        The train, of the matrix form or not.

    Returns
    -------
    list of array
        One for each of the d - 1 inner bonds, descending; the squares of each sum up to that of
        the tensor's norm. Their number is at most the rank, less where the cores beside a bond
        cannot fill it.

    Raises
    ------
    ValueError
        A core with a NaN or infinite entry.

    Examples
    --------
    >>> import numpy as np
    >>> cores = [np.diag([3.0, 4.0])[None], np.eye(2)[:, :, None]]
    >>> [s.tolist() for s in bond_singular_values(cores)]
    [[4.0, 3.0]]
    """
    xp = array_api_compat.array_namespace(*cores)
    if any(0 in core.shape for core in cores):
        # real, on the cores' device
        return [xp.abs(xp.reshape(core[:0, ...], (0,))) for core in cores[1:]]
    sweep = _right_sweep(xp, _computing(xp, cores))
    return [times_power_of_two(xp, s, sweep.exponent) for s in _spectra(xp, sweep)]


class _RightSweep(NamedTuple):
    """A train ``2**exponent * center . Q_2 ... Q_d`` with right-orthogonal Q and norm(center) ~ 1.

    Core k, divided by ``2**powers[k]``, times ``bonds[k] * 2**shifts[k]`` is Q_k times the same of
    the bond before it.
    """

    cores: list[Any]
    powers: list[int]
    center: Any
    rows: list[Any]
    bonds: list[Any]
    shifts: list[int]
    center_power: int

    @property
    def exponent(self) -> int:
        """Power of two between the center and the tensor."""
        return self.center_power + self.shifts[0] + sum(self.powers)


def _computing(xp: Any, cores: Sequence[Any]) -> list[Any]:
    """Return the cores in dtypes that have factorizations; none of them accepts NaN."""
    accepted = (xp.float32, xp.float64, xp.complex64, xp.complex128)
    for k, core in enumerate(cores):
        if not bool(xp.all(xp.isfinite(core))):
            raise ValueError(f"cores[{k}] must be finite; it has NaN or infinite entries")
    return [core if core.dtype in accepted else xp.astype(core, xp.float32) for core in cores]


def _empty(xp: Any, cores: list[Any], own: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Round a tensor without entries: ranks 1."""
    like = {"dtype": own, "device": array_api_compat.device(cores[0])}
    last = len(cores) - 1
    left = [xp.zeros((1, c.shape[0]), **like) for c in cores]
    right = [xp.zeros((c.shape[-1], 1), **like) for c in cores]
    left[0], right[last] = xp.ones((1, 1), **like), xp.ones((1, 1), **like)
    new = [xp.zeros((1, *core.shape[1:-1], 1), **like) for core in cores]
    return new, list(zip(left, right, strict=True))


def _right_sweep(xp: Any, cores: Sequence[Any]) -> _RightSweep:
    """Orthogonalize from the right, keeping the factors that move between the cores."""
    scaled = [unit_scale(xp, core) for core in cores]
    one = xp.ones((1, 1), dtype=cores[0].dtype, device=array_api_compat.device(cores[0]))
    bonds, shifts = [one], [0]
    rows: list[Any] = []
    for core, _ in reversed(scaled[1:]):
        product = right_unfolding(
            xp,
            xp.reshape(left_unfolding(xp, core) @ bonds[0], (*core.shape[:-1], bonds[0].shape[1])),
        )
        q, r = xp.linalg.qr(adjoint(xp, product))
        rows.insert(0, adjoint(xp, q))
        bond, shift = unit_scale(xp, adjoint(xp, r))
        bonds.insert(0, bond)
        shifts.insert(0, shift + shifts[0])
    center, power = unit_scale(xp, left_unfolding(xp, scaled[0][0]) @ bonds[0])
    return _RightSweep(
        [core for core, _ in scaled], [p for _, p in scaled], center, rows, bonds, shifts, power
    )


def _spectra(xp: Any, sweep: _RightSweep) -> list[Any]:
    """Singular values of every bond of the centered train."""
    result, center = [], sweep.center
    for k, rows in enumerate(sweep.rows):
        _, s, v = xp.linalg.svd(center, full_matrices=False)
        result.append(s)
        center = _next_center(xp, s, v, rows, sweep.cores[k + 1])
    return result


def _bonds(cores: Sequence[Any]) -> tuple[int, ...]:
    """Return all d + 1 ranks."""
    return (1, *(int(core.shape[-1]) for core in cores))


def _next_center(xp: Any, s: Any, v: Any, rows: Any, core: Any) -> Any:
    """Multiply what a cut leaves into the core after it; its left unfolding."""
    pushed = (xp.astype(s, v.dtype)[:, None] * v) @ rows
    columns = rows.shape[1] // math.prod(core.shape[1:-1])
    return xp.reshape(pushed, (v.shape[0] * math.prod(core.shape[1:-1]), columns))


def _cut(
    xp: Any, sweep: _RightSweep, caps: Sequence[int], reserves: Sequence[float] | None
) -> tuple[list[Any], list[tuple[Any, Any]], list[Any]]:
    """Cut every bond from left to right: new cores, their maps, the bonds' singular values."""
    cores, center, last = sweep.cores, sweep.center, len(sweep.cores) - 1
    shares = share_exponent(xp, center.dtype, sweep.exponent, len(cores), last)
    total = as_float(xp.linalg.vector_norm(xp.astype(xp.abs(center), xp.float64))) ** 2
    dropped = 0.0
    gram = sweep.bonds[last]  # 1; later how the new cores so far act on the given ones
    new: list[Any] = []
    lefts, rights, values = [gram], [], []
    gauge = 0  # powers of two that the given cores before a bond have more than the new ones
    for k, rows in enumerate(sweep.rows):
        u, s, v = xp.linalg.svd(center, full_matrices=False)
        # what earlier cuts left over is for this one
        allowed = None if reserves is None else reserves[k] - dropped
        rank, lost = kept_rank(xp, s, droppable_square(xp, center, total, allowed), caps[k + 1])
        dropped += lost
        u, s, v = u[:, :rank], s[:rank], v[:rank, :]
        # a zero tensor has nothing to divide by
        inverse = xp.where(s > 0, 1 / xp.where(s > 0, s, xp.ones_like(s)), xp.zeros_like(s))
        right = (sweep.bonds[k] @ adjoint(xp, v)) * xp.astype(inverse, v.dtype)[None, :]
        gauge += sweep.powers[k] - shares[k]
        power = sweep.shifts[k] - sweep.center_power - sweep.shifts[0]
        rights.append(times_power_of_two(xp, right, power - gauge))
        unitary = xp.reshape(u, (gram.shape[0], *cores[k].shape[1:-1], rank))
        new.append(times_power_of_two(xp, unitary, shares[k]))
        values.append(s)
        moved = gram @ right_unfolding(xp, cores[k])
        gram = adjoint(xp, u) @ xp.reshape(moved, (u.shape[0], cores[k].shape[-1]))
        lefts.append(times_power_of_two(xp, gram, gauge))
        center = _next_center(xp, s, v, rows, cores[k + 1])
    core = xp.reshape(center, (gram.shape[0], *cores[last].shape[1:]))
    new.append(times_power_of_two(xp, core, shares[last]))
    maps = list(zip(lefts, [*rights, sweep.bonds[last]], strict=True))
    return new, maps, values


def _balanced(
    xp: Any, cores: list[Any], maps: list[tuple[Any, Any]], values: Sequence[Any]
) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Share singular values between the cores beside their bonds; equal root mean squares."""
    roots = [xp.astype(xp.sqrt(s), cores[0].dtype) for s in values]
    one = xp.ones((1,), dtype=cores[0].dtype, device=array_api_compat.device(cores[0]))
    shared = [
        core * b / xp.reshape(a, (-1, *(1,) * (core.ndim - 1)))
        for core, a, b in zip(cores, [one, *roots], [*roots, one], strict=True)
    ]
    sizes = [_log_root_mean_square(xp, core) for core in shared]
    new, moved, before = [], [], 0.0  # logarithm of the factors of the cores before
    for core, (left, right), a, b, size in zip(
        shared, maps, [one, *roots], [*roots, one], sizes, strict=True
    ):
        own = sum(sizes) / len(sizes) - size
        new.append(core * math.exp(own))
        moved.append((left / a[:, None] * math.exp(-before), right * b * math.exp(before + own)))
        before += own
    return new, moved


def _log_root_mean_square(xp: Any, core: Any) -> float:
    """Return the logarithm of the root mean square of a core that is not zero."""
    unit, exponent = unit_scale(xp, core)
    mean = as_float(xp.linalg.vector_norm(unit)) / math.sqrt(math.prod(core.shape))
    return math.log(mean) + exponent * math.log(2.0)
