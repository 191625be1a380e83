"""Moments of what a layer is given, and of what it should have been given."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tensoralg.nn.input_statistics import InputSums

__all__ = ["InputMoments", "moved_weight"]

# of the mean square of the inputs: how far targets may move where there is hardly any data
_DAMPING = 0.01
# of the mean square of an input: what is left of its variance below that is rounding
_CONSTANT = 1e-12


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
        """Return the moments of inputs whose means were taken away; constant ones become zeros."""

        def without(gram: Tensor, left: Tensor, right: Tensor) -> Tensor:
            return gram - left[:, :, None] * right[:, None, :] * self.rows

        def varying(gram: Tensor, centred: Tensor) -> Tensor:
            one, two = gram.diagonal(dim1=1, dim2=2), centred.diagonal(dim1=1, dim2=2)
            return (two > _CONSTANT * one).to(gram)

        zero, gram = torch.zeros_like(self.mean), without(self.gram, self.mean, self.mean)
        own = varying(self.gram, gram)
        gram = gram * own[:, :, None] * own[:, None, :]
        if self.is_own:
            return InputMoments(gram, gram, gram, zero, zero, self.rows)
        wanted = without(self.wanted, self.wanted_mean, self.wanted_mean)
        other = varying(self.wanted, wanted)
        wanted = wanted * other[:, :, None] * other[:, None, :]
        cross = without(self.cross, self.mean, self.wanted_mean)
        cross = cross * own[:, :, None] * other[:, None, :]
        return InputMoments(gram, wanted, cross, zero, zero, self.rows)


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
