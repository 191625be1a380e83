"""Carries an optimizer's moments along when the cores of a train are replaced."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["carry_moments"]

_logger = logging.getLogger("tensoralg.nn")

# what PyTorch's optimizers call running means of gradients, and of their squares
_GRADIENT_LIKE = ("exp_avg", "momentum_buffer", "grad_avg")
_SQUARE_LIKE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf")


def carry_moments(
    optimizer: torch.optim.Optimizer,
    parameter: Tensor,
    shape: Sequence[int],
    maps: tuple[Tensor, Tensor] | None,
) -> None:
    """Rewrite what an optimizer remembers of a core for the core that takes its place.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its state of the parameter is changed; hyperparameters and step counts stay.
    parameter : Tensor, shape (r, ..., q)
        The core before the change.
    shape : sequence of int
        (s, ..., t), its shape after the change.
    maps : pair of Tensor, shapes (s, r) and (q, t), or None
        L and R of the change ``core -> L core R``. None forgets the moments where they no longer
        fit.

    Notes
    -----
    If ``core = X core' Y`` for the pseudo-inverses X and Y of the maps, the gradient of the new
    core is ``X^T gradient Y^T``: for orthonormal maps these are L and R again. Running means of
    gradients follow this map, those of squares its entrywise squares, as for entries that do not
    correlate. State of another kind is forgotten.
    """
    state = optimizer.state.get(parameter)
    if not state:
        return
    shaped = {k: v for k, v in state.items() if torch.is_tensor(v) and v.shape == parameter.shape}
    known = all(name in _GRADIENT_LIKE or name in _SQUARE_LIKE for name in shaped)
    if maps is None or not known:
        if tuple(parameter.shape) != tuple(shape) or maps is not None:
            _logger.info("the optimizer's state of a core is reset: %s", sorted(shaped))
            optimizer.state.pop(parameter)
        return
    left, right = _gradient_maps(*maps)
    for name, moment in shaped.items():
        x, y = (left, right) if name in _GRADIENT_LIKE else (left**2, right**2)
        flat = moment.to(x.dtype).reshape(moment.shape[0], -1, moment.shape[-1])
        carried = torch.einsum("sr,rnq,qt->snt", x, flat, y)
        state[name] = carried.reshape(tuple(shape)).to(moment.dtype).contiguous()


def _gradient_maps(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maps of a gradient: transposed pseudo-inverses, in at least single precision."""
    wide = torch.promote_types(left.dtype, torch.float32)
    return torch.linalg.pinv(left.to(wide)).mT, torch.linalg.pinv(right.to(wide)).mT
