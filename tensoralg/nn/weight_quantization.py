"""Codes of one layer's weight from the moments of its inputs, and what they do to its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tensoralg.core.validation import nonnegative_integer
from tensoralg.nn.input_statistics import InputSums
from tensoralg.nn.quantized_weight import QuantizedWeight, comq
from tensoralg.solvers.quantization_grid import check_grid_options, minmax_grid

__all__ = [
    "FittedWeight",
    "GridOptions",
    "InputMoments",
    "fit_table",
    "fit_tied",
    "fit_weight",
    "judged",
    "moved_weight",
]

# of the mean square of the inputs: how far targets may move where there is hardly any data
_DAMPING = 0.01


@dataclass(frozen=True, slots=True)
class GridOptions:
    """How codes are found; the first six are those of `comq`.

    Parameters
    ----------
    sweeps : int
        Passes over all entries.
    init : {"gptq", "nearest"}
        The start.
    scale : {"channel", "layer"}
        How many steps there are.
    group_size : int or None
        Columns per step.
    order : {"greedy", "cyclic"}
        Of the entries.
    symmetric : bool
        Whether the zero point is code 0.
    correct_bias : bool
        Whether a bias makes up for the mean error of the outputs.

    Raises
    ------
    ValueError
        Another option than these.

    Examples
    --------
    >>> GridOptions().sweeps
    4
    """

    sweeps: int = 4
    init: Literal["gptq", "nearest"] = "gptq"
    scale: Literal["channel", "layer"] = "channel"
    group_size: int | None = None
    order: Literal["greedy", "cyclic"] = "greedy"
    symmetric: bool = True
    correct_bias: bool = True

    def __post_init__(self) -> None:
        nonnegative_integer("sweeps", self.sweeps)
        check_grid_options(self.scale, self.group_size, 1)
        for name, value, accepted in (
            ("init", self.init, ("gptq", "nearest")),
            ("order", self.order, ("greedy", "cyclic")),
        ):
            if value not in accepted:
                raise ValueError(f"{name} must be one of {accepted}; got {value!r}")

    def codes(self, weight: Tensor, gram: Tensor, bits: int) -> QuantizedWeight:
        """Find codes under a Gram matrix.

        Parameters
        ----------
        weight : Tensor, shape (out, n)
            The weight.
        gram : Tensor, shape (n, n)
            Of the inputs.
        bits : int
            2 to 8.

        Returns
        -------
        QuantizedWeight
            The codes.
        """
        return comq(
            weight,
            gram,
            bits,
            sweeps=self.sweeps,
            init=self.init,
            scale=self.scale,
            group_size=self.group_size,
            order=self.order,
            symmetric=self.symmetric,
        )

    def nearest(self, weight: Tensor, bits: int) -> Tensor:
        """Round to the nearest values of the grid over the weight's range.

        Parameters
        ----------
        weight : Tensor, shape (out, n)
            The weight.
        bits : int
            2 to 8.

        Returns
        -------
        Tensor of float64, shape (out, n)
            The values.
        """
        array = weight.detach().double().cpu().numpy()
        grid = minmax_grid(
            array, bits, scale=self.scale, symmetric=self.symmetric, group_size=self.group_size
        )
        return torch.from_numpy(grid.dequantize(grid.nearest(array))).to(weight.device)


@dataclass(frozen=True, slots=True)
class InputMoments:
    """Moments of a layer's inputs X' and of the inputs X whose outputs are wanted.

    Parameters
    ----------
    gram, wanted : Tensor of float64, shape (groups, n, n)
        ``X'^T X'`` and ``X^T X``.
    cross : Tensor of float64, shape (groups, n, n)
        ``X'^T X``.
    mean, wanted_mean : Tensor of float64, shape (groups, n)
        Means of the rows.
    rows : int
        How many.

    Examples
    --------
    >>> sums = InputSums(torch.ones(1, 1, 1).double(), torch.ones(1, 1).double(), 1)
    >>> InputMoments.of(sums).mean.item()
    1.0
    """

    gram: Tensor
    wanted: Tensor
    cross: Tensor
    mean: Tensor
    wanted_mean: Tensor
    rows: int

    @classmethod
    def of(cls, sums: InputSums) -> "InputMoments":
        """Take the layer's own inputs for those whose outputs are wanted.

        Parameters
        ----------
        sums : InputSums
            Of a calibrator.

        Returns
        -------
        InputMoments
            Where there are no rows, those of white inputs: the weight's own error counts.
        """
        if not sums.rows:
            eye = torch.eye(sums.gram.shape[-1], dtype=sums.gram.dtype, device=sums.gram.device)
            gram, mean = eye.expand_as(sums.gram), torch.zeros_like(sums.total)
            return cls(gram, gram, gram, mean, mean, 0)
        mean = sums.total / sums.rows
        return cls(sums.gram, sums.gram, sums.gram, mean, mean, sums.rows)

    @property
    def is_own(self) -> bool:
        """Whether X' and X are the same."""
        return self.gram is self.cross

    def centred(self) -> "InputMoments":
        """Return the moments of inputs whose means were taken away."""

        def without(gram: Tensor, left: Tensor, right: Tensor) -> Tensor:
            return gram - self.rows * left[:, :, None] * right[:, None, :]

        zero, gram = torch.zeros_like(self.mean), without(self.gram, self.mean, self.mean)
        if self.is_own:
            return InputMoments(gram, gram, gram, zero, zero, self.rows)
        wanted = without(self.wanted, self.wanted_mean, self.wanted_mean)
        cross = without(self.cross, self.mean, self.wanted_mean)
        return InputMoments(gram, wanted, cross, zero, zero, self.rows)


@dataclass(frozen=True, slots=True)
class FittedWeight:
    """A layer's codes and what they do.

    Parameters
    ----------
    coded : QuantizedWeight or None
        The codes, those of the groups of a convolution one below the other.
    bias_change : Tensor of float64, shape (out,), or None
        What the bias has to be moved by.
    error, nearest_error : float
        Relative errors of the outputs: of these codes, and of rounding to the nearest value.
    """

    coded: QuantizedWeight | None
    bias_change: Tensor | None
    error: float
    nearest_error: float


def fit_weight(
    weight: Tensor, moments: InputMoments, bits: int, options: GridOptions, *, bias: bool
) -> FittedWeight:
    """Quantize the weight of a linear layer or a convolution.

    Parameters
    ----------
    weight : Tensor, shape (out, n)
        The rows of each group one below the other.
    moments : InputMoments
        Of every group.
    bits : int
        2 to 8.
    options : GridOptions
        How.
    bias : bool
        Whether the layer has a bias, which can make up for the mean error.

    Returns
    -------
    FittedWeight
        The codes.

    Notes
    -----
    With a bias the error to be minimised is that of the outputs without their mean, so that the
    centred Gram matrix counts. Where the inputs X' are not those whose outputs are wanted, codes
    are fitted to ``W' = W + W (X - X')^T X' (X'^T X' + damping)^-1``, which is best before
    rounding: ``|X W^T - X' Q^T|`` is then ``|X' (W' - Q)^T|`` up to a constant.

    Examples
    --------
    >>> moments = InputMoments.of(InputSums(torch.eye(2)[None].double(), torch.zeros(1, 2), 2))
    >>> weight = torch.tensor([[1.0, -0.5], [0.25, 0.0]])
    >>> fit_weight(weight, moments, 8, GridOptions(), bias=False).error < 0.01
    True
    """
    centring = bias and options.correct_bias and moments.rows > 0
    used = moments.centred() if centring else moments
    groups, columns = used.gram.shape[0], used.gram.shape[2]
    wide = weight.double().reshape(groups, weight.shape[0] // groups, columns)
    target = wide if used.is_own else moved_weight(wide, used)
    coded = _joined(
        [
            options.codes(one.to(weight.dtype), gram, bits)
            for one, gram in zip(target, used.gram.to(weight.device), strict=True)
        ]
    )
    value, nearest = coded.dequantize(), options.nearest(weight, bits)
    return replace(judged(weight, value, nearest, moments, centring), coded=coded)


def judged(
    weight: Tensor, value: Tensor, nearest: Tensor, moments: InputMoments, centring: bool
) -> FittedWeight:
    """Measure what other weights do to the outputs of a layer.

    Parameters
    ----------
    weight, value, nearest : Tensor, shape (out, n)
        The weight, what codes made of it, and what rounding to the nearest values makes of it.
    moments : InputMoments
        Of the inputs.
    centring : bool
        Whether the bias makes up for the mean error.

    Returns
    -------
    FittedWeight
        Without codes.
    """
    used = moments.centred() if centring else moments
    shape = (used.gram.shape[0], -1, used.gram.shape[2])
    wide, value, nearest = (m.double().reshape(shape) for m in (weight, value, nearest))
    change = None
    if centring:
        change = _applied(wide, moments.wanted_mean) - _applied(value, moments.mean)
    whole = _power(wide, moments.wanted)
    return FittedWeight(
        None,
        change,
        _relative(_distance(wide, value, used), whole),
        _relative(_distance(wide, nearest, moments), whole),
    )


def moved_weight(weight: Tensor, moments: InputMoments) -> Tensor:
    """Return the weight that gives the wanted outputs best, as far as there are data.

    Parameters
    ----------
    weight : Tensor of float64, shape (groups, out, n)
        For the inputs X.
    moments : InputMoments
        Of X and of the inputs X' that the layer is given.

    Returns
    -------
    Tensor of float64, same shape
        For the inputs X'.

    Examples
    --------
    >>> one = torch.ones(1, 1, 1).double()
    >>> moments = InputMoments(4 * one, one, 2 * one, 2 * one[0], one[0], 1)  # X' = 2 X
    >>> round(moved_weight(one, moments).item(), 2)
    0.5
    """
    gram, cross = moments.gram.to(weight.device), moments.cross.to(weight.device)
    diagonal = gram.diagonal(dim1=1, dim2=2)
    damping = (_DAMPING * diagonal.mean(dim=1)).clamp_min(torch.finfo(gram.dtype).tiny)
    damped = gram + damping[:, None, None] * torch.eye(gram.shape[1]).to(gram)
    change: Tensor = torch.linalg.solve(damped, (cross - gram) @ weight.mT)
    return weight + change.mT


def _joined(parts: list[QuantizedWeight]) -> QuantizedWeight:
    """Put the codes of groups one below the other."""
    if len(parts) == 1:
        return parts[0]
    return QuantizedWeight(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat([part.zero_point for part in parts]),
        parts[0].bits,
        parts[0].group_size,
        (),
    )


def _applied(weight: Tensor, mean: Tensor) -> Tensor:
    """Return the outputs (out,) of the mean input of each group."""
    return (weight @ mean.to(weight)[:, :, None]).reshape(-1)


def _power(weight: Tensor, gram: Tensor) -> float:
    """Return ``|X W^T|^2`` over all groups."""
    return float(((weight @ gram.to(weight)) * weight).sum())


def _distance(weight: Tensor, value: Tensor, moments: InputMoments) -> float:
    """Return ``|X W^T - X' Q^T|^2`` over all groups."""
    if moments.is_own:
        return _power(weight - value, moments.gram)
    both = ((value @ moments.cross.to(weight)) * weight).sum()
    return _power(weight, moments.wanted) - 2 * float(both) + _power(value, moments.gram)


def _relative(square: float, whole: float) -> float:
    """Return the root of a share; 0 where there is nothing to miss."""
    return float(max(square, 0.0) / whole) ** 0.5 if whole > 0.0 else 0.0


def fit_table(weight: Tensor, counts: Tensor, bits: int, options: GridOptions) -> FittedWeight:
    """Quantize the table of an embedding.

    Parameters
    ----------
    weight : Tensor, shape (rows, columns)
        The table. Its rows are outputs of their own: each is rounded by its own error.
    counts : Tensor of int, shape (rows,)
        How often each was looked up: what its error counts in the error of the outputs. Where
        none was, all count the same.
    bits : int
        2 to 8.
    options : GridOptions
        How.

    Returns
    -------
    FittedWeight
        The codes.

    Examples
    --------
    >>> table = torch.tensor([[1.0, -0.5], [0.25, 0.0]])
    >>> fit_table(table, torch.tensor([3, 1]), 8, GridOptions()).error < 0.01
    True
    """
    return _judged_table(weight, options.codes(weight, _eye(weight), bits), counts, options)


def _eye(weight: Tensor) -> Tensor:
    """Return the Gram matrix of white inputs."""
    return torch.eye(weight.shape[1], dtype=torch.float64, device=weight.device)


def _judged_table(
    weight: Tensor, coded: QuantizedWeight, counts: Tensor, options: GridOptions
) -> FittedWeight:
    """Measure what codes do to the rows that were looked up."""
    share = counts.to(weight.device).double()
    share = share if bool(share.any()) else torch.ones_like(share)
    wide = weight.double()

    def power(matrix: Tensor) -> float:
        return float(matrix.square().sum(dim=1) @ share)

    whole = power(wide)
    nearest = options.nearest(weight, coded.bits)
    return FittedWeight(
        coded,
        None,
        _relative(power(wide - coded.dequantize().double()), whole),
        _relative(power(wide - nearest), whole),
    )


def fit_tied(
    weight: Tensor,
    inputs: Sequence[InputMoments | Tensor],
    bits: int,
    options: GridOptions,
    *,
    biases: Sequence[bool],
) -> list[FittedWeight]:
    """Quantize a weight that several layers have, once for all of them.

    Parameters
    ----------
    weight : Tensor, shape (out, n)
        The weight.
    inputs : sequence of InputMoments or Tensor
        For each layer the moments of its inputs, or the counts of an embedding's lookups.
    bits : int
        2 to 8.
    options : GridOptions
        How.
    biases : sequence of bool
        Whether the layers have biases.

    Returns
    -------
    list of FittedWeight
        The same codes for each, with errors and changes of the bias of its own.

    Notes
    -----
    What is minimised is the sum of the layers' relative squared errors. An embedding's is taken
    as if all rows had been looked up equally often: so it is a Gram matrix for all rows.

    Examples
    --------
    >>> moments = InputMoments.of(InputSums(torch.eye(2)[None].double(), torch.zeros(1, 2), 2))
    >>> weight = torch.tensor([[1.0, -0.5], [0.25, 0.0]])
    >>> inputs = [moments, torch.tensor([1, 0])]
    >>> fits = fit_tied(weight, inputs, 4, GridOptions(), biases=[True, False])
    >>> fits[0].coded is fits[1].coded
    True
    """
    wide = weight.double()[None]
    gram, centrings = torch.zeros_like(_eye(weight)), []
    for one, has_bias in zip(inputs, biases, strict=True):
        centrings.append(has_bias and options.correct_bias)
        if isinstance(one, Tensor):
            own = _eye(weight)[None]
            seen = bool(one.any())
        else:
            centrings[-1] = centrings[-1] and one.rows > 0
            own, seen = (one.centred() if centrings[-1] else one).gram.to(wide.device), one.rows > 0
        whole = _power(wide, own)
        if seen and whole > 0.0:
            gram += own[0] / whole
    coded = options.codes(weight, gram if bool(gram.any()) else _eye(weight), bits)
    value, nearest = coded.dequantize(), options.nearest(weight, bits)
    return [
        _judged_table(weight, coded, one, options)
        if isinstance(one, Tensor)
        else replace(judged(weight, value, nearest, one, centring), coded=coded)
        for one, centring in zip(inputs, centrings, strict=True)
    ]
