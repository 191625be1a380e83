"""Anderson mixing of the sweeps of alternating least squares."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoralg.gpu.namespaces import device_of, namespace_of, to_numpy
from tensoralg.solvers.alternating_sweeps import AlternatingSweeps

__all__ = ["SweepMixing", "expanding_direction", "mix"]

FloatArray = NDArray[np.float64]

_MEMORY = 10
_FIRST_EXTRAPOLATION = 4
_LONGEST_PAUSE = 16
_MANY_FAILURES = 3
# of the mean eigenvalue: late differences are nearly parallel
_DAMPING = 1e-8
# of the largest squared step: what counts as a direction of its own
_INDEPENDENT = 1e-8
_STUBBORN = 2  # failures in a row that a saddle may be the reason for
_FIRST_STRIDE = 0.05  # away from a saddle, relative to the norm of the factors


class SweepMixing:
    """Moves a model to where its last sweeps lead, and back where that was of no use.

    A sweep maps factors to better ones. From the last few such pairs Anderson mixing takes the
    combination of the images whose change would be smallest if sweeps were linear. The sweep that
    follows judges it: if the fit is lower than before, the mixture is taken back, the pairs are
    forgotten and mixing pauses, longer after every failure in a row.

    Parameters
    ----------
    sweeps : AlternatingSweeps
        The model; its factors are read and replaced.

    References
    ----------
    Walker and Ni, Anderson acceleration for fixed-point iterations, SIAM J. Numer. Anal. 49, 2011.
    Mitchell, Ye and De Sterck, Nesterov acceleration of alternating least squares for canonical
    tensor decomposition, Numer. Linear Algebra Appl. 27, 2020 (accelerated sweeps with restarts).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> start = [rng.standard_normal((n, 1)) for n in (3, 4)]
    >>> sweeps = AlternatingSweeps(rng.standard_normal((3, 4)), start)
    >>> mixing = SweepMixing(sweeps)
    >>> for _ in range(9):
    ...     mixing.extrapolate()
    ...     sweeps.sweep()
    ...     accepted = mixing.accepts()
    """

    def __init__(self, sweeps: AlternatingSweeps) -> None:
        self._sweeps = sweeps
        self._images: list[Any] = []
        self._changes: list[Any] = []
        self._wait = _FIRST_EXTRAPOLATION
        self._failures = 0
        self._disappointments = 0
        self._tried = False
        self._strides = False
        self._stride = _FIRST_STRIDE
        self._point: Any = None
        self._safe: tuple[Any, float] | None = None

    def extrapolate(self) -> None:
        """Replace the model by a mixture, if there are pairs and no pause; before a sweep."""
        sweeps = self._sweeps
        self._point, self._safe = self._flat(), None
        self._wait -= 1
        if self._wait >= 0 or len(self._images) < 2:
            return
        mixture = self._beyond_saddle()
        if mixture is None:
            mixture = mix(self._images, self._changes)
        if sweeps.nonnegative:
            mixture = namespace_of(mixture).clip(mixture, min=0.0)
        self._safe = (self._point, sweeps.formula_fit)
        self._point = mixture
        sweeps.restore(self._split(mixture))

    def accepts(self) -> bool:
        """Judge the mixture by the sweep that followed; take it back if the fit is lower.

        Returns
        -------
        bool
            False: the model is the one before the mixture.
        """
        sweeps = self._sweeps
        if self._safe is not None and sweeps.formula_fit < self._safe[1] - sweeps.formula_noise:
            sweeps.restore(self._split(self._safe[0]))
            sweeps.formula_fit = self._safe[1]
            if self._strides:
                self._stride *= 0.25
            self.pause()
            return False
        if self._safe is not None:
            self._failures, self._tried = 0, True
            if self._strides:
                self._stride = min(2.0 * self._stride, 1.0)
        image = self._flat()
        self._images = [*self._images, image][-_MEMORY - 1 :]
        self._changes = [*self._changes, image - self._point][-_MEMORY - 1 :]
        return True

    def pause(self) -> None:
        """Forget all pairs and go on without mixing for a while."""
        self._images, self._changes = [], []
        self._failures += 1
        self._wait = max(self._wait, min(2**self._failures, _LONGEST_PAUSE))

    def _beyond_saddle(self) -> Any:
        """Stride along the direction that sweeps expand, if mixing has failed and there is one."""
        self._strides = False
        if self._failures < _STUBBORN:
            return None
        direction = expanding_direction(self._images, self._changes)
        if direction is None:
            return None
        self._strides = True
        here = self._images[-1]
        length = math.sqrt(float(namespace_of(here).sum(here * here)))
        return here + self._stride * length * direction

    def has_helped(self) -> bool:
        """Tell whether slow growth means anything; asking starts the count anew.

        Returns
        -------
        bool
            True if a mixture was accepted since the last call, or several in a row were not.
        """
        tried, self._tried = self._tried, False
        return tried or self._failures >= _MANY_FAILURES or self._disappointments >= _MANY_FAILURES

    def disappoint(self) -> None:
        """Note that accepted mixtures made the residual worse: the formula could not tell."""
        self._disappointments += 1
        self.pause()
        if self._disappointments >= _MANY_FAILURES:
            self._wait = sys.maxsize

    def _flat(self) -> Any:
        """All factors in one vector, every column of a term with the same norm."""
        factors = self._sweeps.balanced()
        xp = namespace_of(*factors)
        return xp.concat([xp.reshape(factor, (-1,)) for factor in factors])

    def _split(self, flat: Any) -> list[Any]:
        """Cut that vector into factors again."""
        xp, rank = namespace_of(flat), self._sweeps.rank
        factors, start = [], 0
        for n in self._sweeps.shape:
            stop = start + n * rank
            factors.append(xp.reshape(flat[start:stop], (n, rank)))
            start = stop
        return factors


def mix(images: Sequence[Any], changes: Sequence[Any]) -> Any:
    """Combine the images of a fixed-point iteration so that their change is small.

    Parameters
    ----------
    images : sequence of k >= 2 arrays of float64, shape (n,)
        g(x), the last one last, in any namespace.
    changes : sequence of k arrays, shape (n,)
        g(x) - x.

    Returns
    -------
    array, shape (n,)
        The last image plus differences of images, with coefficients that minimise the same
        combination of changes. Only k * k numbers leave a device.

    Examples
    --------
    >>> x = [np.array([2.0]), np.array([1.9])]
    >>> images = [0.9 * value + 0.1 for value in x]
    >>> mix(images, [g - value for g, value in zip(images, x)]).round(6).tolist()
    [1.0]
    """
    turns = _differences(changes)
    gram = _products(turns, turns)
    right = to_numpy(namespace_of(turns).matmul(turns, changes[-1]))
    gram = gram + _DAMPING * np.trace(gram) / len(gram) * np.eye(len(gram))
    mixing = np.linalg.lstsq(gram, right, rcond=None)[0]
    return images[-1] - _combine(mixing, _differences(images))


def expanding_direction(images: Sequence[Any], changes: Sequence[Any]) -> Any:
    """Find the direction in which a fixed-point iteration moves away from its fixed point.

    Mixing solves for a fixed point, and near a saddle of the objective it would stay there.

    Parameters
    ----------
    images : sequence of k >= 2 arrays of float64, shape (n,)
        g(x), the last one last, in any namespace.
    changes : sequence of k arrays, shape (n,)
        g(x) - x.

    Returns
    -------
    array, shape (n,), or None
        A unit vector along which the last change grows; None where, in the span of the last
        steps, every direction is contracted (Rayleigh-Ritz, for nearly symmetric g').

    Examples
    --------
    >>> x = [np.array([0.1, 1.0]), np.array([0.2, 0.7]), np.array([0.3, 0.2])]
    >>> images = [value * np.array([1.5, 0.5]) for value in x]
    >>> changes = [g - value for g, value in zip(images, x)]
    >>> np.abs(expanding_direction(images, changes)).round(6).tolist()
    [1.0, 0.0]
    """
    steps = _differences([image - change for image, change in zip(images, changes, strict=True)])
    scale, basis = np.linalg.eigh(_products(steps, steps))
    kept = scale > _INDEPENDENT * scale[-1]
    if not kept.any() or scale[-1] <= 0.0:
        return None
    basis = basis[:, kept] / np.sqrt(scale[kept])
    growth = basis.T @ _products(_differences(changes), steps) @ basis
    values, vectors = np.linalg.eigh(0.5 * (growth + growth.T))
    if values[-1] <= 0.0:
        return None
    direction = _combine(basis @ vectors[:, -1], steps)
    xp = namespace_of(direction)
    return direction if float(xp.sum(direction * changes[-1])) >= 0.0 else -direction


def _differences(vectors: Sequence[Any]) -> Any:
    """Differences of all vectors from the last, as rows."""
    xp = namespace_of(*vectors)
    return xp.stack([vector - vectors[-1] for vector in vectors[:-1]])


def _products(left: Any, right: Any) -> FloatArray:
    """Inner products of rows, on the host."""
    xp = namespace_of(left)
    result: FloatArray = to_numpy(xp.matmul(left, xp.matrix_transpose(right)))
    return result


def _combine(coefficients: FloatArray, rows: Any) -> Any:
    """Linear combination of rows, with coefficients from the host."""
    if isinstance(rows, np.ndarray):
        return coefficients @ rows
    xp = namespace_of(rows)
    return xp.matmul(xp.asarray(coefficients, device=device_of(rows)), rows)
