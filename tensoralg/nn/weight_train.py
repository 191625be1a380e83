"""Tensor trains of given weight matrices, by the weight's own error or by that of the outputs.

References
----------
.. [1] I. V. Oseledets, "Tensor-train decomposition", SIAM J. Sci. Comput. 33 (2011).
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from tensoralg.core.errors import ShapeError
from tensoralg.core.tensor_train_decomposition import dense_to_cores, dense_to_matrix_cores
from tensoralg.core.tensor_train_rounding import check_tolerance, round_cores
from tensoralg.nn.core_products import merge_left

__all__ = ["computing_weight", "table_cores", "train_of_weight"]

# directions without data count a little, so that the weight there is kept where that costs nothing
_DAMPING = 1e-6


def computing_weight(name: str, weight: Tensor) -> Tensor:
    """Detach a weight, in a dtype that has factorisations.

    Parameters
    ----------
    name : str
        What it is, for the message.
    weight : Tensor, any shape
        A parameter.

    Returns
    -------
    Tensor, same shape
        In float32 or float64.

    Raises
    ------
    ValueError
        It has NaN or infinite entries, is complex, or has no values (device "meta").

    Examples
    --------
    >>> computing_weight("the weight", torch.ones(2, dtype=torch.float16)).dtype
    torch.float32
    """
    if weight.is_meta or not weight.is_floating_point():
        raise ValueError(
            f"{name} must have real floating-point values; got dtype {weight.dtype} on "
            f"device {weight.device}"
        )
    if not bool(torch.isfinite(weight).all()):
        raise ValueError(f"{name} must be finite; it has NaN or infinite entries")
    weight = weight.detach()
    return weight if weight.dtype in (torch.float32, torch.float64) else weight.float()


def table_cores(
    table: Tensor,
    row_shape: Sequence[int],
    column_shape: Sequence[int],
    *,
    ranks: Sequence[int] | None,
    rtol: float | None,
) -> list[Tensor]:
    """Factorise a table in matrix form.

    Parameters
    ----------
    table : Tensor, shape (m, n)
        The rows; zeros are put where the modes exceed m and n.
    row_shape, column_shape : sequence of int, length d
        Modes of rows and columns.
    ranks : sequence of int, length d + 1, or None
        Largest ranks.
    rtol : float, optional
        Largest relative error in the Frobenius norm.

    Returns
    -------
    list of Tensor, shapes (r_{k-1}, v_k e_k, r_k)
        The cores, of balanced sizes.

    Raises
    ------
    ValueError
        A table that is not finite, or a tolerance below 0.

    Examples
    --------
    >>> [tuple(c.shape) for c in table_cores(torch.ones(5, 4), (2, 3), (2, 2), ranks=None, rtol=0)]
    [(1, 4, 2), (2, 6, 1)]
    """
    padded = _padded(computing_weight("the table", table), prod(row_shape), prod(column_shape))
    cores = dense_to_matrix_cores(padded, row_shape, column_shape, rtol=rtol, ranks=ranks)
    return round_cores([c.flatten(1, 2) for c in cores], balance=True)[0]


def train_of_weight(
    weight: Tensor,
    in_shape: Sequence[int],
    out_shape: Sequence[int],
    *,
    ranks: Sequence[int] | None,
    rtol: float | None,
    gram: Tensor | None,
) -> list[Tensor]:
    """Factorise a weight as a train over its rows, then its columns.

    Parameters
    ----------
    weight : Tensor, shape (m, n)
        Inputs by outputs; zeros are put where the modes exceed m and n.
    in_shape, out_shape : sequence of int
        Modes of rows and columns.
    ranks : sequence of int, or None
        Largest ranks, of all bonds.
    rtol : float, optional
        Largest relative error: of the weight, or of ``X weight`` where `gram` is given.
    gram : Tensor, shape (m, m), optional
        ``X^T X`` for the inputs X that count.

    Returns
    -------
    list of Tensor, shapes (r_{k-1}, n_k, r_k)
        The cores, of balanced sizes.

    Raises
    ------
    ShapeError
        A Gram matrix of another shape.
    ValueError
        A weight or a Gram matrix that is not finite, or a tolerance below 0.

    Notes
    -----
    With a Gram matrix G the middle bond is cut by the singular values of ``G^(1/2) weight``,
    which is best possible there; the output cores are then fitted anew to the cut input cores
    and cut in the metric in which their errors are those of the outputs. Only the cut of the
    input cores is by the weight's own error; where `rtol` is missed by that, it is made tighter.

    Examples
    --------
    >>> cores = train_of_weight(torch.eye(4), (2, 2), (4,), ranks=None, rtol=None, gram=None)
    >>> [tuple(core.shape) for core in cores]
    [(1, 2, 2), (2, 2, 4), (4, 4, 1)]
    """
    rtol = check_tolerance(rtol)
    rows, columns = prod(in_shape), prod(out_shape)
    padded = _padded(computing_weight("the weight", weight), rows, columns)
    if gram is None:
        cores = dense_to_cores(padded.reshape(*in_shape, *out_shape), rtol=rtol, ranks=ranks)
        return round_cores(cores, balance=True)[0]
    if tuple(gram.shape) != (weight.shape[0], weight.shape[0]):
        expected = (weight.shape[0], weight.shape[0])
        raise ShapeError(f"gram must have shape {expected}; got {tuple(gram.shape)}")
    padded = padded.double()
    gram = _padded(computing_weight("gram", gram).to(padded), rows, rows)
    root, inverse = _square_roots(gram)
    share = None if rtol is None else rtol / 3**0.5
    norm = torch.linalg.norm(root @ padded)
    left_share = share
    while True:
        cores = _cut_halves(padded, root, inverse, in_shape, out_shape, ranks, share, left_share)
        if rtol is None or left_share is None:
            break
        left, right = merge_left(cores[: len(in_shape)]), merge_left(cores)
        missed = torch.linalg.norm(root @ (padded - right.reshape(left.shape[0], -1)))
        if missed <= rtol * norm or left_share == 0.0:
            break
        left_share = left_share / 4 if left_share > 1e-6 else 0.0
    return round_cores(cores, balance=True)[0]


def _cut_halves(
    weight: Tensor,
    root: Tensor,
    inverse: Tensor,
    in_shape: Sequence[int],
    out_shape: Sequence[int],
    ranks: Sequence[int] | None,
    share: float | None,
    left_share: float | None,
) -> list[Tensor]:
    """Cores of the weight in the metric of the outputs; `root` is that of the Gram matrix."""
    d = len(in_shape)
    (u, s) = dense_to_cores(
        root @ weight, rtol=share, ranks=None if ranks is None else (1, ranks[d], 1)
    )
    middle = u.shape[2]
    # A diag(sizes), whose errors are those of the product with the orthonormal rest
    factor, rest = inverse @ u[0], s[:, :, 0]
    sizes = torch.linalg.norm(rest, dim=1).clamp_min(torch.finfo(rest.dtype).tiny)
    lefts = dense_to_cores(
        (factor * sizes).reshape(*in_shape, middle),
        rtol=left_share,
        ranks=None if ranks is None else (*ranks[: d + 1], 1),
    )
    lefts[-2] = torch.einsum("rns,st->rnt", lefts[-2], lefts[-1][:, :, 0])
    basis, triangle = torch.linalg.qr(root @ merge_left(lefts[:-1]))
    fitted = basis.mT @ (root @ weight)
    rights = dense_to_cores(
        fitted.reshape(fitted.shape[0], *out_shape),
        rtol=share,
        ranks=None if ranks is None else (1, *ranks[d:]),
    )
    # a rank that the input cores do not fill leaves nothing to fit
    solved = torch.linalg.pinv(triangle) @ rights[0][0]
    rights[1] = torch.einsum("rs,snt->rnt", solved, rights[1])
    return [*lefts[:-1], *rights[1:]]


def _square_roots(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Square root of a Gram matrix and its inverse, damped; the identity for a zero matrix."""
    size = gram.shape[0]
    mean = torch.trace(gram) / size
    values, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    if not mean > 0:
        identity = torch.eye(size, dtype=gram.dtype, device=gram.device)
        return identity, identity
    values = torch.sqrt((values / mean).clamp_min(0.0) + _DAMPING)
    return (vectors * values) @ vectors.mT, (vectors / values) @ vectors.mT


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Add zero rows and columns."""
    return functional.pad(matrix, (0, columns - matrix.shape[1], 0, rows - matrix.shape[0]))
