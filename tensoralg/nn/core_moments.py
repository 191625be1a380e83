"""What belongs to a parameter follows when it gets other data: moments, gradient, graph."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "absorbing_maps",
    "carry_moments",
    "forget_moments",
    "gradient_maps",
    "own_copy",
    "set_data",
]

_logger = logging.getLogger("tensoralg.nn")

# what PyTorch's optimizers call running means of gradients, and of their squares
_GRADIENT_LIKE = ("exp_avg", "momentum_buffer", "grad_avg")
_SQUARE_LIKE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum")
# factors of a bond below this share of its largest one count as zero where moments follow
_VANISHING = 1e-12


def gradient_maps(maps: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Find how the gradients of cores follow a change of the cores.

    Parameters
    ----------
    maps : sequence of pair of Tensor, shapes (s_{k-1}, r_{k-1}) and (r_k, s_k)
        For each core L_k and R_k of the change ``core_k -> L_k core_k R_k``, where
        ``L_{k+1} R_k`` is the identity.

    Returns
    -------
    list of pair of Tensor, the same shapes
        X_k and Y_k, of at least single precision, with which the gradient of the new core is
        ``X_k gradient_k Y_k``.

    Notes
    -----
    In the old ranks the new tensor has the cores ``R_{k-1} new_k L_{k+1}``: the identities at the
    bonds cancel what stands between. By the chain rule X_k and Y_k are transposes of these
    factors. For orthonormal maps they are L_k and R_k again.

    Examples
    --------
    >>> one, half = torch.ones(1, 1), torch.full((1, 1), 0.5)
    >>> [(x.item(), y.item()) for x, y in gradient_maps([(one, 2 * one), (half, one)])]
    [(1.0, 0.5), (2.0, 1.0)]
    """
    wide = [tuple(m.to(torch.promote_types(m.dtype, torch.float32)) for m in pair) for pair in maps]
    lefts, rights = [pair[0] for pair in wide], [pair[1] for pair in wide]
    # the ends, numbers, have no neighbour
    before = [torch.linalg.pinv(lefts[0]), *rights[:-1]]
    after = [*lefts[1:], torch.linalg.pinv(rights[-1])]
    return [(x.mT, y.mT) for x, y in zip(before, after, strict=True)]


def absorbing_maps(
    maps: Sequence[tuple[Tensor, Tensor]], bonds: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """Let maps of gradients begin at cores whose bonds' factors are about to be absorbed.

    Parameters
    ----------
    maps : sequence of pair of Tensor, shapes (s_{k-1}, r_{k-1}) and (r_k, s_k)
        Of the gradients of cores with their factors, as from `gradient_maps`.
    bonds : sequence of Tensor, shapes (r_k,), one for each inner bond
        The factors d; core k goes into the tensor as ``core * d_k``.

    Returns
    -------
    list of pair of Tensor of float64, the same shapes
        Of the gradients of the cores alone. The gradient of ``core * d`` is that of the core
        divided by d; where d is zero, or below 1e-12 of the bond's largest factor, nothing is
        known of it, and zero is taken.

    Examples
    --------
    >>> one = torch.ones(1, 1)
    >>> [(x.item(), y.item()) for x, y in absorbing_maps([(one, one)] * 2, [torch.tensor([2.0])])]
    [(1.0, 0.5), (1.0, 1.0)]
    """
    result = []
    for (x, y), d in zip(maps, [*bonds, None], strict=True):
        x, y = x.double(), y.double()  # of single precision the squares would overflow
        if d is not None:
            wide = d.detach().to(y)
            small = wide.abs() <= _VANISHING * wide.abs().max()
            y = torch.where(small, 0.0, 1 / torch.where(small, 1.0, wide))[:, None] * y
        result.append((x, y))
    return result


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
        How its gradient changes, as from `gradient_maps`. None forgets the moments where they no
        longer fit.

    Notes
    -----
    Running means of gradients follow the maps, those of squares their entrywise squares, as for
    entries that do not correlate. State of another kind is forgotten, and so is what would not be
    finite: moments from before a bond's factors became tiny may overflow.
    """
    if isinstance(optimizer, torch.optim.LBFGS):  # one flat vector of all parameters
        optimizer.state.clear()
        optimizer._numel_cache = None
        return
    state = optimizer.state.get(parameter)
    if not state:
        return
    shaped = {k: v for k, v in state.items() if torch.is_tensor(v) and v.shape == parameter.shape}
    others = [v for k, v in state.items() if torch.is_tensor(v) and v.ndim and k not in shaped]
    known = not others and all(n in _GRADIENT_LIKE or n in _SQUARE_LIKE for n in shaped)
    if maps is None or not known:
        if tuple(parameter.shape) != tuple(shape) or maps is not None:
            _logger.info("the optimizer's state of a core is reset: %s", sorted(state))
            forget_moments(optimizer, parameter, shape)
        return
    carried = _carried(shaped, shape, *maps)
    if all(bool(torch.isfinite(moment).all()) for moment in carried.values()):
        state.update(carried)
    else:
        _logger.info("the optimizer's state of a core is reset: it would not be finite")
        forget_moments(optimizer, parameter, shape)


def _carried(
    moments: dict[str, Tensor], shape: Sequence[int], left: Tensor, right: Tensor
) -> dict[str, Tensor]:
    """Apply maps to running means of gradients, and their squares to those of squares."""
    result = {}
    for name, moment in moments.items():
        x, y = (left, right) if name in _GRADIENT_LIKE else (left**2, right**2)
        if name == "square_avg" and "grad_avg" in moments:
            moment = (moment - moments["grad_avg"] ** 2).clamp_min(0)
        flat = moment.to(x.dtype).reshape(moment.shape[0], -1, moment.shape[-1])
        carried = torch.einsum("sr,rnq,qt->snt", x, flat, y)
        result[name] = carried.reshape(tuple(shape)).to(moment.dtype).contiguous()
    if {"grad_avg", "square_avg"} <= moments.keys():  # centered: their difference is a variance
        result["square_avg"] = result["square_avg"] + result["grad_avg"] ** 2
    return result


def forget_moments(
    optimizer: torch.optim.Optimizer, parameter: Tensor, shape: Sequence[int]
) -> None:
    """Drop what an optimizer remembers of a parameter.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its next step of the parameter is a first one.
    parameter : Tensor, any shape
        A core or a bond.
    shape : sequence of int
        The shape that it has from now on.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.Adam([weight])
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> forget_moments(optimizer, weight, weight.shape)
    >>> len(optimizer.state)
    0
    """
    state = optimizer.state.get(parameter, {})
    if isinstance(optimizer, torch.optim.SGD) and state.get("momentum_buffer") is not None:
        # its fused kernel takes momenta of all parameters or of none
        state["momentum_buffer"] = parameter.new_zeros(tuple(shape))
    else:
        optimizer.state.pop(parameter, None)


def own_copy(tensor: Tensor) -> Tensor:
    """Copy values into memory of their own, in order: views of parameters are common."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def set_data(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter new data, of any shape; its gradient is dropped.

    Parameters
    ----------
    parameter : Tensor
        A leaf; the object stays.
    value : Tensor
        Not copied.

    Notes
    -----
    A graph that is still alive, such as that of the last loss, holds the node that accumulates
    the parameter's gradient, with the old shape; later graphs would share it and fail. PyTorch
    makes a new node where the dtype changes, hence the step in between.

    Examples
    --------
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> loss = weight.sum()
    >>> set_data(weight, torch.ones(2))
    >>> weight.sum().backward()
    >>> weight.grad.tolist()
    [1.0, 1.0]
    """
    other = torch.float64 if parameter.dtype != torch.float64 else torch.float32
    parameter.grad = None
    parameter.data = value.new_empty(0, dtype=other)
    parameter.data = value
