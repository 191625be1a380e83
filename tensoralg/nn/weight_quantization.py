"""Codes of one layer's weight from the moments of its inputs, and what they do to its outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tensoralg.nn.grid_options import GridOptions
from tensoralg.nn.input_moments import InputMoments, moved_weight
from tensoralg.nn.quantized_weight import QuantizedWeight

__all__ = ["FittedWeight", "fit_table", "fit_tied", "fit_weight", "judged"]


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
    >>> from tensoralg.nn.input_statistics import InputSums
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
    # under the unit matrix the nearest values are best: one sweep settles the steps
    quick = replace(options, init="nearest", sweeps=min(options.sweeps, 1))
    return _judged_table(weight, quick.codes(weight, _eye(weight), bits), counts, options)


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
    >>> from tensoralg.nn.input_statistics import InputSums
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
