"""Products of consecutive cores of a train, from the left or from the right."""

from collections.abc import Sequence

from torch import Tensor

__all__ = ["merge_left", "merge_right"]


def merge_left(cores: Sequence[Tensor]) -> Tensor:
    """Multiply consecutive cores from the left.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, n_k, r_k)
        The first of rank 1 on its left, or with that rank folded into n.

    Returns
    -------
    Tensor, shape (r_0 n_1 .. n_m, r_m)
        Cheapest where the left rank is the smaller one.

    Examples
    --------
    >>> import torch
    >>> merge_left([torch.ones(1, 2, 3), torch.ones(3, 4, 5)]).shape
    torch.Size([8, 5])
    """
    product = cores[0].reshape(-1, cores[0].shape[2])
    for core in cores[1:]:
        r, n, s = core.shape
        product = (product @ core.reshape(r, n * s)).reshape(-1, s)
    return product


def merge_right(cores: Sequence[Tensor]) -> Tensor:
    """Multiply consecutive cores from the right.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, n_k, r_k)
        The last of rank 1 on its right, or with that rank folded into n.

    Returns
    -------
    Tensor, shape (r_0, n_1 .. n_m r_m)
        Cheapest where the right rank is the smaller one.

    Examples
    --------
    >>> import torch
    >>> merge_right([torch.ones(2, 3, 4), torch.ones(4, 5, 1)]).shape
    torch.Size([2, 15])
    """
    product = cores[-1].reshape(cores[-1].shape[0], -1)
    for core in reversed(cores[:-1]):
        r, n, s = core.shape
        product = (core.reshape(r * n, s) @ product).reshape(r, -1)
    return product
