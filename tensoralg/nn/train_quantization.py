"""Codes for the cores of a tensor train, one core after the other, by the layer's outputs.

With the cores behind core k row-orthonormal, the error of the outputs is a quadratic form in core
k; for all cores but the first ones of the inputs it is that of a linear layer whose inputs are the
contractions of X with the cores before. So each core is a problem of coordinate descent, after a
least-squares fit to what the cores before it have become.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tensoralg.core.tensor_train_algebra import right_orthogonalize
from tensoralg.core.tensor_train_decomposition import dense_to_cores
from tensoralg.nn.core_products import merge_left, merge_right
from tensoralg.nn.grid_options import GridOptions
from tensoralg.nn.quantized_weight import QuantizedWeight

__all__ = ["CodedCore", "fit_cores", "matrix_to_core", "nearest_cores", "padded_gram"]

_LARGEST_FORM = 4096  # entries of a core whose full quadratic form is built: 134 MB
_DAMPING = 1e-6  # of the mean curvature, where a fit is not determined


@dataclass(frozen=True, slots=True)
class CodedCore:
    """A core as a matrix of codes.

    Parameters
    ----------
    coded : QuantizedWeight
        Of a matrix of shape (r_k, r_{k-1} n_k) for inputs, (n_k r_k, r_{k-1}) for outputs.
    shape : tuple of int
        (r_{k-1}, n_k, r_k).
    of_inputs : bool
        Which of the two.
    """

    coded: QuantizedWeight
    shape: tuple[int, int, int]
    of_inputs: bool

    def dequantize(self) -> Tensor:
        """Return the core, shape (r_{k-1}, n_k, r_k)."""
        return matrix_to_core(self.coded.dequantize(), self.shape, self.of_inputs)


def matrix_to_core(matrix: Tensor, shape: tuple[int, int, int], of_inputs: bool) -> Tensor:
    """Fold a matrix with the contracted indices in its columns into a core.

    Parameters
    ----------
    matrix : Tensor, shape (r', r n) or (n r', r)
        The matrix.
    shape : tuple of int
        (r, n, r').
    of_inputs : bool
        Whether the mode is one of the inputs.

    Returns
    -------
    Tensor, shape (r, n, r')
        The core.

    Examples
    --------
    >>> matrix_to_core(torch.arange(6.0).reshape(6, 1), (1, 2, 3), False).tolist()
    [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]
    """
    return matrix.mT.reshape(shape)


def core_to_matrix(core: Tensor, of_inputs: bool) -> Tensor:
    """Unfold a core so that the contracted indices are its columns.

    Parameters
    ----------
    core : Tensor, shape (r, n, r')
        The core.
    of_inputs : bool
        Whether the mode is one of the inputs.

    Returns
    -------
    Tensor, shape (r', r n) or (n r', r)
        The matrix.

    Examples
    --------
    >>> core_to_matrix(torch.ones(2, 3, 4), True).shape
    torch.Size([4, 6])
    """
    r, n, s = core.shape
    return core.reshape(r * n, s).mT if of_inputs else core.reshape(r, n * s).mT


def nearest_cores(
    cores: Sequence[Tensor], inputs: int, bits: int, options: GridOptions
) -> list[Tensor]:
    """Round cores in canonical form to the nearest values of their grids.

    Parameters
    ----------
    cores : sequence of Tensor, shapes (r_{k-1}, n_k, r_k)
        The train.
    inputs : int
        How many of the cores are those of the inputs.
    bits : int
        2 to 8.
    options : GridOptions
        Of the grids.

    Returns
    -------
    list of Tensor
        The rounded cores.

    Examples
    --------
    >>> nearest_cores([torch.ones(1, 2, 1).double()], 1, 8, GridOptions())[0].shape
    torch.Size([1, 2, 1])
    """
    rounded = []
    for k, core in enumerate(right_orthogonalize(cores, 0)):
        matrix = options.nearest(core_to_matrix(core, k < inputs), bits)
        rounded.append(matrix_to_core(matrix, tuple(core.shape), k < inputs))
    return rounded


def fit_cores(
    cores: Sequence[Tensor],
    gram: Tensor,
    target: Tensor,
    in_shape: Sequence[int],
    out_shape: Sequence[int],
    bits: int,
    options: GridOptions,
) -> list[CodedCore]:
    """Quantize the cores of a train so that its outputs change least.

    Parameters
    ----------
    cores : sequence of Tensor of float64, shapes (r_{k-1}, n_k, r_k)
        The train over the modes of inputs, then of outputs.
    gram : Tensor of float64, shape (inputs, inputs)
        Of the inputs; zeros where the modes exceed the features.
    target : Tensor of float64, shape (inputs, outputs)
        The weight that the quantized train is to come near to.
    in_shape, out_shape : sequence of int
        The modes.
    bits : int
        2 to 8.
    options : GridOptions
        How.

    Returns
    -------
    list of CodedCore
        The cores; ranks that the modes cannot fill have gone.

    Notes
    -----
    Where the last core of the inputs is done, the rest of the train is fitted anew as a matrix
    and decomposed with the ranks it had, in the metric of the outputs.
    """
    d = len(in_shape)
    present = right_orthogonalize([core.double() for core in cores], 0)
    found: list[CodedCore] = []
    for k in range(len(present)):
        if k == d:
            present[d:] = _fitted_rest(present[:d], gram, target, present[d:], out_shape)
        found.append(_fit_core(present, k, gram, target, d, bits, options))
        present[k] = found[k].dequantize().double()
    return found


def _fit_core(
    cores: Sequence[Tensor],
    k: int,
    gram: Tensor,
    target: Tensor,
    inputs: int,
    bits: int,
    options: GridOptions,
) -> CodedCore:
    """Fit core k to the cores before it, and quantize it."""
    r, n, s = cores[k].shape
    shape, of_inputs = (r, n, s), k < inputs
    if of_inputs and k < inputs - 1 and r * n * s <= _LARGEST_FORM:
        form, slope = _full_form(cores, k, gram, target, inputs)
        best = _solved(form, slope[:, None])[:, 0]
        # one row; the entries of one right rank lie side by side and share a scale
        grouped = GridOptions(
            options.sweeps, options.init, "channel", r * n, options.order, options.symmetric
        )
        coded = grouped.codes(best[None], form, bits)
        return CodedCore(_unrolled(coded, s), shape, True)
    form, slope = _contracted(cores, k, gram, target, inputs)
    best = _solved(form, slope) if k >= inputs - 1 else core_to_matrix(cores[k], of_inputs).mT
    return CodedCore(options.codes(best.mT, form, bits), shape, of_inputs)


def _solved(form: Tensor, slope: Tensor) -> Tensor:
    """Solve for the best entries, damped where the data do not determine them."""
    damping = _DAMPING * form.diagonal().mean().clamp_min(torch.finfo(form.dtype).tiny)
    solution: Tensor = torch.linalg.solve(form + damping * torch.eye(len(form)).to(form), slope)
    return solution


def _unrolled(coded: QuantizedWeight, rows: int) -> QuantizedWeight:
    """Turn one row with groups into rows with one step each."""
    codes = coded.codes.reshape(rows, -1)
    scale, zero = coded.scale.reshape(rows, 1), coded.zero_point.reshape(rows, 1)
    return QuantizedWeight(codes, scale, zero, coded.bits, codes.shape[1], coded.errors)


def _contracted(
    cores: Sequence[Tensor], k: int, gram: Tensor, target: Tensor, inputs: int
) -> tuple[Tensor, Tensor]:
    """Gram matrix of what core k is contracted with, and its products with what is wanted.

    For a core of the inputs before the last one the other inputs are taken as they come, as if
    the cores behind were orthonormal for them: the products are not used then.
    """
    right = merge_right(cores[k + 1 :]) if k + 1 < len(cores) else None
    r, n, s = cores[k].shape
    if k < inputs:
        left = _left_inputs(cores, k, gram)  # (r n rest, r n rest)
        size, rest = r * n, left.shape[0] // (r * n)
        form = torch.einsum("atbt->ab", left.reshape(size, rest, size, rest))
        if k < inputs - 1:
            return form, form.new_zeros(size, s)
        wanted = _map_inputs(cores, k, gram @ target, rest)
        assert right is not None
        return form, wanted @ right.mT
    left = merge_left(cores[:k])  # (inputs, outs before, r)
    before = left.reshape(gram.shape[0], -1, r)
    weighted = torch.einsum("ij,jor->ior", gram, before)
    form = torch.einsum("ior,ios->rs", before, weighted)
    wide = target.reshape(gram.shape[0], before.shape[1], n, -1)
    wanted = torch.einsum("ior,ionz->rnz", weighted, wide)
    if right is not None:
        wanted = torch.einsum("rnz,sz->rns", wanted, right)
    return form, wanted.reshape(r, n * s)


def _map_inputs(cores: Sequence[Tensor], k: int, matrix: Tensor, rest: int) -> Tensor:
    """Contract the modes before k of a matrix (inputs, m) with the cores; (r n rest, m)."""
    if k == 0:
        return matrix
    left = merge_left(cores[:k])  # (before, r)
    wide = matrix.reshape(left.shape[0], -1)
    return (left.mT @ wide).reshape(-1, matrix.shape[1])


def _left_inputs(cores: Sequence[Tensor], k: int, gram: Tensor) -> Tensor:
    """Gram matrix with the modes before k contracted on both sides: (r n rest, r n rest)."""
    once = _map_inputs(cores, k, gram, 0)
    return _map_inputs(cores, k, once.mT, 0).mT


def _full_form(
    cores: Sequence[Tensor], k: int, gram: Tensor, target: Tensor, inputs: int
) -> tuple[Tensor, Tensor]:
    """Quadratic form of the outputs' error in core k, ordered (r', r n), and its slope."""
    r, n, s = cores[k].shape
    left = _left_inputs(cores, k, gram)
    size, rest = r * n, left.shape[0] // (r * n)
    behind = merge_right(cores[k + 1 :])  # (s, rest outs)
    behind = behind.reshape(s * rest, -1)
    metric = (behind @ behind.mT).reshape(s, rest, s, rest)
    spread = left.reshape(size, rest, size, rest)
    form = torch.einsum("atbu,ptqu->paqb", spread, metric).reshape(s * size, s * size)
    wanted = _map_inputs(cores, k, gram @ target, rest).reshape(size, rest, -1)
    slope = torch.einsum("ato,pto->pa", wanted, behind.reshape(s, rest, -1))
    return form, slope.reshape(-1)


def _fitted_rest(
    before: Sequence[Tensor],
    gram: Tensor,
    target: Tensor,
    cores: Sequence[Tensor],
    out_shape: Sequence[int],
) -> list[Tensor]:
    """Cores of the outputs that fit the quantized cores of the inputs best, right-orthonormal."""
    left = merge_left(before)
    form, slope = left.mT @ gram @ left, left.mT @ (gram @ target)
    best = _solved(form, slope)
    values, vectors = torch.linalg.eigh((form + form.mT) / 2)
    least = _DAMPING * values[-1].clamp_min(torch.finfo(form.dtype).tiny)
    root = values.clamp_min(float(least)).sqrt()
    ranks = (1, *(core.shape[0] for core in cores), 1)
    scaled = (root[:, None] * (vectors.mT @ best)).reshape(len(form), *out_shape)
    parts = dense_to_cores(scaled, ranks=ranks)
    first = torch.einsum("ab,bns->ans", (vectors / root) @ parts[0][0], parts[1])
    # a dummy core carries what orthonormality pushes to the left
    pushed = right_orthogonalize([torch.eye(len(form)).to(form)[None], first, *parts[2:]], 0)
    first = torch.einsum("ab,bns->ans", pushed[0][0], pushed[1])
    return [first, *pushed[2:]]


def padded_gram(gram: Tensor, size: int) -> Tensor:
    """Add zero rows and columns for inputs that exist in the modes only.

    Parameters
    ----------
    gram : Tensor, shape (n, n)
        Of the features.
    size : int
        Product of the modes.

    Returns
    -------
    Tensor, shape (size, size)
        With zeros.

    Examples
    --------
    >>> padded_gram(torch.ones(1, 1), 2).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return functional.pad(gram, (0, size - gram.shape[0], 0, size - gram.shape[0]))
