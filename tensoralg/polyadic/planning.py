"""Which method a decomposition takes, and why: the plan apart from its execution."""

import math
from dataclasses import dataclass
from typing import Any

from tensoralg.gpu.namespaces import namespace_of
from tensoralg.polyadic.inputs import PreparedTensor

__all__ = ["METHODS", "Plan", "plan_decomposition"]

METHODS = ("auto", "als", "compressed", "sgd")
# beyond it the steps in all factors at once converge more slowly than sweeps over the listed cells
_MOST_MISSING = 0.4


@dataclass(frozen=True, slots=True)
class Plan:
    """A method and the reason for it.

    Attributes
    ----------
    method : str
        "als", "compressed", "sgd" or "svd".
    reason : str
        One clause for the result's message.
    """

    method: str
    reason: str


def plan_decomposition(
    tensor: PreparedTensor,
    method: str,
    *,
    nonnegative: bool,
    has_start: bool,
    precision: str | None,
) -> Plan:
    """Choose the method, or check the one that was asked for.

    Parameters
    ----------
    tensor : PreparedTensor
        What is to be decomposed.
    method : str
        One of `METHODS`.
    nonnegative : bool
        Whether all factors must be nonnegative.
    has_start : bool
        Whether a start was given.
    precision : str or None
        The policy that was asked for.

    Returns
    -------
    Plan
        Never "auto".

    Raises
    ------
    ValueError
        An unknown method, or one that cannot do what is asked.

    Examples
    --------
    >>> from tensoralg.polyadic.inputs import prepare_tensor
    >>> plan_decomposition(prepare_tensor([[1.0, 2.0]]), "auto", nonnegative=False,
    ...     has_start=False, precision=None).method
    'svd'
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if tensor.is_sparse and precision not in (None, tensor.dtype):
        raise ValueError(
            f"precision {precision!r} does not work with a sparse tensor, whose products run in "
            f"its own {tensor.dtype}; use None"
        )
    if method == "als":
        return Plan("als", "it was asked for")
    intended = "compressed" if method == "auto" else method
    obstacle = _obstacle(tensor, intended, nonnegative=nonnegative, has_start=has_start)
    if method != "auto":
        if obstacle is not None:
            raise ValueError(f"method {method!r} does not work with {obstacle}; use 'als'")
        return Plan(method, "it was asked for")
    is_plain = _is_plain_matrix(tensor, nonnegative) and not has_start
    if tensor.order == 1 or (tensor.order == 2 and is_plain):
        reason = "of a tensor with at most two modes the singular values are the answer"
        ignored = "" if precision is None else f", in float64 and not in {precision}"
        return Plan("svd", reason + ignored)
    if obstacle is not None:
        return Plan("als", f"chosen because of {obstacle}")
    if precision is not None and precision not in ("float64", "float32"):
        return Plan("als", f"chosen because its products run in {precision}")
    if tensor.mask is None:
        return Plan("compressed", "chosen for a dense tensor without a mask")
    missing = _missing_part(tensor.mask)
    if missing > _MOST_MISSING:
        return Plan("als", f"chosen because {missing:.0%} of the cells are missing")
    return Plan("compressed", "chosen for a dense tensor with few missing cells")


def _is_plain_matrix(tensor: PreparedTensor, nonnegative: bool) -> bool:
    """Whether singular values are the answer."""
    stored = not tensor.is_sparse and not tensor.is_streamed
    return stored and tensor.mask is None and not nonnegative


def _missing_part(mask: Any) -> float:
    """Part of the cells that is not observed."""
    xp = namespace_of(mask)
    observed = int(xp.sum(xp.astype(mask, xp.int64)))
    return 1.0 - observed / float(math.prod(mask.shape))


def _obstacle(
    tensor: PreparedTensor, method: str, *, nonnegative: bool, has_start: bool
) -> str | None:
    """Name what a method other than alternating least squares cannot do, if it is asked for."""
    if nonnegative:
        return "nonnegative factors"
    if tensor.is_sparse:
        return "a sparse tensor"
    if method == "compressed":
        return "a given start" if has_start else None
    if tensor.mask is not None:
        return "a mask"
    return "a single mode" if tensor.order < 2 else None
