"""Steps of block stochastic gradient descent on a polyadic model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.gpu.namespaces import namespace_of, to_numpy
from tensoralg.gpu.precision import PrecisionPolicy
from tensoralg.gpu.sampled_gradient import (
    draw_fibres,
    gather_by_slabs,
    gather_fibres,
    khatri_rao_rows,
    sampled_gradient,
)

__all__ = ["BlockSteps", "StochasticSchedule"]

_SMALLEST_SAMPLE = 64
# norms beyond, for a tensor of moderate entries, come from steps that diverge
_OVERFLOW = 1e12
_GATHERED_ENTRIES = 2**25


@dataclass(frozen=True, slots=True)
class StochasticSchedule:
    """How block stochastic gradient descent samples and steps. All defaults are our choices.

    Parameters
    ----------
    n_fibres : int, optional
        Fibres per step; the default is four times the rank, at least 64.
    steps_per_epoch : int, optional
        Steps between two looks at the fit; by default as many as read one entry for every entry
        of the tensor, at least 10 and at most 100 per mode. A tensor that is read by slabs is
        passed once per epoch; there, all fibres of an epoch together have 2**25 entries at most.
    step : float, optional
        A fixed number that multiplies the gradient, for columns of the other factors with root
        mean square 1 (then 1 / rank is safe); the default is 1 / L, where L, the largest
        eigenvalue of ``H^T H / S``, is the Lipschitz constant of the sampled gradient.
    decay : float, optional
        Steps shrink as ``epoch ** -decay``. By default they are halved whenever the fit has
        stopped growing. Steps that diverge are halved in any case.
    sign_epochs : int, default 0
        Epochs of the first stage, which follows the signs of the gradient only (SignSGD).
    sign_step : float, default 0.05
        Its steps in the first epoch, relative to the root mean square of the entries of a factor
        that models a tensor of this norm; they shrink as ``epoch ** -0.5``.
    residual_form : bool, default True
        Which operands a precision policy rounds; see `tensoralg.gpu.sampled_gradient`.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> StochasticSchedule(sign_epochs=5).step is None
    True
    """

    n_fibres: int | None = None
    steps_per_epoch: int | None = None
    step: float | None = None
    decay: float | None = None
    sign_epochs: int = 0
    sign_step: float = 0.05
    residual_form: bool = True

    def __post_init__(self) -> None:
        for name in ("n_fibres", "steps_per_epoch"):
            count = getattr(self, name)
            if count is not None and (not isinstance(count, int) or count < 1):
                raise ValueError(f"{name} must be a positive integer or None; got {count!r}")
        for name in ("step", "sign_step"):
            size = getattr(self, name)
            if size is not None and not 0.0 < size < math.inf:
                raise ValueError(f"{name} must be positive and finite; got {size!r}")
        if self.decay is not None and not 0.0 <= self.decay <= 1.0:
            raise ValueError(f"decay must lie in [0, 1] or be None; got {self.decay!r}")
        if not isinstance(self.sign_epochs, int) or self.sign_epochs < 0:
            raise ValueError(f"sign_epochs must be an integer >= 0; got {self.sign_epochs!r}")

    def fibres(self, rank: int) -> int:
        """Count the fibres of a step.

        Parameters
        ----------
        rank : int
            Number of terms.

        Returns
        -------
        int
            `n_fibres`, or its default at this rank.
        """
        return self.n_fibres or max(_SMALLEST_SAMPLE, 4 * rank)

    def steps(self, shape: Sequence[int], rank: int, *, gathered: bool = False) -> int:
        """Count the steps of an epoch.

        Parameters
        ----------
        shape : sequence of N int
            Shape of the tensor.
        rank : int
            Number of terms.
        gathered : bool, default False
            Whether the fibres of all steps are in memory together.

        Returns
        -------
        int
            At least one.
        """
        read = self.fibres(rank) * sum(shape) / len(shape)
        count = self.steps_per_epoch
        if count is None:
            least, most = 10 * len(shape), 100 * len(shape)
            count = int(min(max(math.prod(shape) / read, least), most))
        return min(count, max(len(shape), int(_GATHERED_ENTRIES / read))) if gathered else count


class BlockSteps:
    """A model with unit columns and weights, and the steps that change one factor at a time.

    The factor that is stepped carries the weights. The others have unit columns, so that terms
    of very different size do not slow one another down.

    Parameters
    ----------
    factors : sequence of N arrays, shapes (n_k, r)
        The start, but for its scale: the largest weight is 1 at first.
    schedule : StochasticSchedule
        Samples and steps.
    dtype : dtype
        Of the factors and the products.
    norm : float
        Norm of the tensor, which gives steps along signs their size.
    policy : PrecisionPolicy or None
        Rounding of the operands.
    rng : numpy.random.Generator
        Source of the samples and of stochastic rounding.

    Examples
    --------
    >>> ones = [np.ones((2, 1)), np.ones((3, 1))]
    >>> rng = np.random.default_rng(0)
    >>> steps = BlockSteps(ones, StochasticSchedule(), dtype=np.float64, norm=3.0, policy=None,
    ...     rng=rng)
    >>> steps.run(np.full((2, 3), 0.5), 2, 1.0, signs=False)
    True
    >>> (steps.factors[0] @ steps.factors[1].T).round(12).tolist()
    [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    """

    def __init__(
        self,
        factors: Sequence[Any],
        schedule: StochasticSchedule,
        *,
        dtype: Any,
        norm: float,
        policy: PrecisionPolicy | None,
        rng: np.random.Generator,
    ) -> None:
        xp = namespace_of(*factors)
        self._xp = xp
        self._schedule = schedule
        self._policy = policy
        self._rng = rng
        self._dtype = dtype
        self._norm = norm
        wide = [xp.astype(factor, xp.float64, copy=True) for factor in factors]
        weights: Any = 1.0
        for mode, factor in enumerate(wide):
            wide[mode], norms = _unit_columns(xp, factor * weights, factor)
            # in the range of every dtype; `scale` makes up for it
            weights = norms / (float(xp.max(norms)) or 1.0)
        self._units = [xp.astype(factor, dtype) for factor in wide]
        self._weights = xp.astype(weights, dtype)

    @property
    def factors(self) -> tuple[Any, ...]:
        """Factors in float64, the weights shared equally by all of them."""
        xp = self._xp
        weights = xp.astype(self._weights, xp.float64)
        share = weights ** (1.0 / len(self._units))
        return tuple(xp.astype(unit, xp.float64) * share for unit in self._units)

    @property
    def rank(self) -> int:
        """Number of terms."""
        return int(self._weights.shape[0])

    def save(self) -> tuple[list[Any], Any]:
        """Give the state; steps replace arrays and never write into them."""
        return list(self._units), self._weights

    def restore(self, state: tuple[list[Any], Any]) -> None:
        """Go back to a state that was saved."""
        self._units, self._weights = list(state[0]), state[1]

    def scale(self, factor: float) -> None:
        """Multiply the model by a positive number."""
        self._weights = self._weights * factor

    def run(self, tensor: Any, count: int, shrink: float, *, signs: bool) -> bool:
        """Take steps.

        Parameters
        ----------
        tensor : array or TensorBlocks, shape (n_1, ..., n_N)
            Fibres are gathered step by step from an array, and for all steps in one pass over
            slabs.
        count : int
            Steps, each on another mode in random order.
        shrink : float
            Factor on the step of the schedule.
        signs : bool
            Whether only the signs of the gradient are followed.

        Returns
        -------
        bool
            False if the factors have overflowed; they must be restored then.
        """
        shape = tuple(unit.shape[0] for unit in self._units)
        order = len(shape)
        rounds = [self._rng.permutation(order) for _ in range(-(-count // order))]
        size = self._schedule.fibres(self.rank)
        wanted = [
            (int(mode), draw_fibres(shape, int(mode), size, self._rng))
            for mode in np.concatenate(rounds)[:count]
        ]
        gathered = gather_by_slabs(tensor, wanted) if hasattr(tensor, "slabs") else None
        for k, (mode, others) in enumerate(wanted):
            fibres = gather_fibres(tensor, mode, others) if gathered is None else gathered[k]
            if not self._step(fibres, mode, others, shrink, signs):
                return False
        return True

    def _step(
        self, fibres: Any, mode: int, others: Sequence[Any], shrink: float, signs: bool
    ) -> bool:
        """Step one factor; false if it overflowed."""
        xp = self._xp
        rows = khatri_rao_rows(self._units, mode, others)
        gram = to_numpy(rows.T @ rows).astype(np.float64) / len(others[0])
        lipschitz = float(np.linalg.eigvalsh(gram)[-1])
        factor = self._units[mode] * self._weights
        gradient = sampled_gradient(
            xp.astype(fibres, self._dtype, copy=False),
            rows,
            factor,
            policy=self._policy,
            residual_form=self._schedule.residual_form,
            rng=self._rng,
        )
        stepped = factor - self._change(gradient, mode, lipschitz, shrink, signs)
        self._units[mode], self._weights = _unit_columns(xp, stepped, self._units[mode])
        return bool(xp.max(self._weights) < _OVERFLOW)  # false for NaN too

    def _change(
        self,
        gradient: Any,
        mode: int,
        lipschitz: float,
        shrink: float,
        signs: bool,
    ) -> Any:
        """Compute what is subtracted from the factor, for the other factors' unit columns."""
        xp = self._xp
        if signs:
            size = math.prod(self._units[mode].shape)
            typical = self._norm / math.sqrt(size)
            return xp.sign(gradient) * (self._schedule.sign_step * shrink * typical)
        if self._schedule.step is not None:
            # unit columns are shorter than those the user's step is for
            others = math.prod(
                int(unit.shape[0]) for k, unit in enumerate(self._units) if k != mode
            )
            return gradient * (self._schedule.step * others * shrink)
        return gradient * (shrink / lipschitz) if lipschitz > 0.0 else gradient * 0.0


def _unit_columns(xp: Any, matrix: Any, previous: Any) -> tuple[Any, Any]:
    """Divide columns by their norms; one that has vanished keeps its previous direction."""
    largest = xp.max(xp.abs(matrix), axis=0)
    safe = xp.where(largest > 0, largest, xp.ones_like(largest))
    norms = xp.sqrt(xp.sum((matrix / safe) ** 2, axis=0)) * safe
    divisor = xp.where(norms > 0, norms, xp.ones_like(norms))
    return xp.where(norms > 0, matrix / divisor, previous), norms
