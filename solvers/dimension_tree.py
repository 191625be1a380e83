"""Products of alternating least squares, sharing partial contractions across sweeps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.mode_contraction import contract_mode, contract_partial
from tensoralg.gpu.mttkrp import mttkrp
from tensoralg.gpu.namespaces import namespace_of

__all__ = ["DimensionTree", "SparseProducts", "group_modes"]

# partial results of fewer entries may be larger than the tensor
_SMALL = 2**20
_SLAB_BYTES = 2**26


@dataclass(frozen=True, slots=True)
class _Partial:
    """A tensor that is contracted with the factors of all modes but some."""

    modes: tuple[int, ...]
    array: Any
    # of every factor when the contraction was made; those of `modes` do not matter
    versions: tuple[int, ...]

    def is_current(self, versions: Sequence[int]) -> bool:
        """Whether the contracted factors are still the same."""
        return all(
            mode in self.modes or now == then
            for mode, (now, then) in enumerate(zip(versions, self.versions, strict=True))
        )


class DimensionTree:
    """Matricized tensor times Khatri-Rao products in an order that shares work across sweeps.

    The tensor itself is read once for all modes but one group of them: contracted with the
    factors that were replaced last, it serves until their turn comes again. With N groups that
    makes N / (N - 1) large products per sweep instead of N; the iterates are those of plain
    alternating least squares. Any order of calls is right; the cyclic one is fast.

    Parameters
    ----------
    tensor : array, shape (n_1, .., n_N), or TensorBlocks
        N >= 2, float32 or float64; read as it lies in memory where it is C-contiguous.
    factors : sequence of N arrays, shapes (n_k, r)
        In the tensor's namespace and dtype.
    policy : PrecisionPolicy, optional
        Of the products with the tensor itself.

    References
    ----------
    Ma and Solomonik, Efficient parallel CP decomposition with pairwise perturbation and
    multi-sweep dimension tree, IPDPS 2021, arXiv:2010.12056.

    Examples
    --------
    >>> import numpy as np
    >>> ones = [np.ones((n, 1)) for n in (2, 3, 4)]
    >>> tree = DimensionTree(np.ones((2, 3, 4)), ones)
    >>> tree.product(0).tolist()
    [[12.0], [12.0]]
    >>> tree.replace(0, np.zeros((2, 1)))
    >>> tree.product(1).tolist()
    [[0.0], [0.0], [0.0]]
    """

    def __init__(self, tensor: Any, factors: Sequence[Any], *, policy: Any = None) -> None:
        # a transposed view of Fortran order is C order with the modes reversed
        self._is_reversed = _is_fortran_only(tensor)
        self._tensor = tensor.T if self._is_reversed else tensor
        if isinstance(tensor, np.ndarray):
            self._tensor = np.ascontiguousarray(self._tensor)
        self._factors = list(factors)
        self._policy = policy
        self._shape = tuple(int(n) for n in tensor.shape)
        self._groups = group_modes(self._shape, int(factors[0].shape[1]))
        self._group_of = {mode: g for g, group in enumerate(self._groups) for mode in group}
        self._versions = [0] * len(factors)
        # from the tensor's own contraction down to single modes, each made from the one before
        self._path: list[_Partial] = []

    def replace(self, mode: int, factor: Any) -> None:
        """Put a new factor in the place of an old one.

        Parameters
        ----------
        mode : int
            0 <= mode < N.
        factor : array, shape (n_mode, r)
            In the tensor's namespace and dtype.
        """
        self._factors[mode] = factor
        self._versions[mode] += 1

    def forget(self) -> None:
        """Note that the entries of the tensor have changed."""
        self._path = []

    def product(self, mode: int) -> Any:
        """Contract the tensor with all factors but one.

        Parameters
        ----------
        mode : int
            0 <= mode < N.

        Returns
        -------
        array, shape (n_mode, r)
            ``sum over i_k, k != mode, of tensor[i_1, .., i_N] prod_k factors[k][i_k, s]``.
        """
        while self._path and not (
            mode in self._path[-1].modes and self._path[-1].is_current(self._versions)
        ):
            self._path.pop()
        if not self._path:
            self._path.append(self._contract_group(self._group_before(mode)))
        while self._path[-1].modes != (mode,):
            self._path.append(self._descend(self._path[-1], mode))
        return self._path[-1].array

    def _group_before(self, mode: int) -> int:
        """Group whose factors stay as they are for longest, once it is the turn of a mode."""
        return (self._group_of[mode] - 1) % len(self._groups)

    def _contract_group(self, number: int) -> _Partial:
        """Contract the tensor itself with the factors of one group."""
        group = self._groups[number]
        alive = tuple(k for k in range(len(self._shape)) if k not in group)
        if self._is_reversed:
            alive = alive[::-1]
        if hasattr(self._tensor, "slabs"):
            array = self._contract_slabs(number)
        else:
            array = self._contract(self._tensor, [self._factors[k] for k in group], number)
        shape = (*(self._shape[k] for k in alive), self._factors[0].shape[1])
        if isinstance(array, np.ndarray):
            return _Partial(alive, array.reshape(shape), tuple(self._versions))
        array = namespace_of(array).reshape(array, shape)
        return _Partial(alive, array, tuple(self._versions))

    def _contract(self, tensor: Any, factors: Sequence[Any], number: int) -> Any:
        """Contract an array with the factors of a group, each group taken as one mode."""
        groups = self._groups
        if self._is_reversed:
            last = len(self._shape) - 1
            groups = [tuple(last - k for k in group) for group in groups[::-1]]
            factors, number = factors[::-1], len(groups) - 1 - number
        lengths = tuple(math.prod(tensor.shape[k] for k in group) for group in groups)
        if isinstance(tensor, np.ndarray):
            view = tensor.reshape(lengths)
        else:
            view = namespace_of(tensor).reshape(tensor, lengths)
        return contract_mode(view, khatri_rao(factors), number, policy=self._policy)

    def _contract_slabs(self, number: int) -> Any:
        """Do it slab by slab of the first mode."""
        group = self._groups[number]
        factors = [self._factors[k] for k in group]
        result: Any = None
        for start, stop, slab in self._tensor.slabs(_SLAB_BYTES):
            part = np.asarray(slab, dtype=factors[0].dtype)
            if number == 0:
                product = self._contract(part, [factors[0][start:stop], *factors[1:]], number)
                result = product if result is None else result + product
                continue
            product = self._contract(part, factors, number)
            if result is None:
                rows = product.size // (stop - start)
                result = np.empty((self._shape[0], rows), dtype=product.dtype)
            result[start:stop] = product.reshape(stop - start, -1)
        return result

    def _descend(self, parent: _Partial, mode: int) -> _Partial:
        """Contract half of the modes of a partial result, keeping the half with a given mode."""
        queue = self._in_turn(parent.modes)
        half = (len(queue) + 1) // 2
        kept = set(queue[:half] if mode in queue[:half] else queue[half:])
        modes, array = list(parent.modes), parent.array
        # the long modes first: what is left after them is small
        for gone in sorted(set(modes) - kept, key=lambda k: -self._shape[k]):
            array = contract_partial(array, self._factors[gone], modes.index(gone))
            modes.remove(gone)
        return _Partial(tuple(modes), array, tuple(self._versions))

    def _in_turn(self, modes: tuple[int, ...]) -> tuple[int, ...]:
        """Give the modes of a partial result in the cyclic order in which they are asked for."""
        order = len(self._shape)
        modes = tuple(sorted(modes))
        for k in range(len(modes)):
            if (modes[k - 1] + 1) % order != modes[k]:
                return modes[k:] + modes[:k]
        return modes


class SparseProducts:
    """The same products of a sparse tensor; nothing is shared between them.

    Parameters
    ----------
    tensor : SparseTensor
        Of any order.
    factors : sequence of N arrays, shapes (n_k, r)
        In the dtype of its values.

    Examples
    --------
    >>> import numpy as np
    >>> from tensoralg.gpu.sparse_tensor import SparseTensor
    >>> tensor = SparseTensor(np.array([[0, 1], [0, 2]]), np.array([2.0, 3.0]), (2, 3))
    >>> SparseProducts(tensor, [np.ones((2, 1)), np.ones((3, 1))]).product(1).tolist()
    [[2.0], [0.0], [3.0]]
    """

    def __init__(self, tensor: Any, factors: Sequence[Any]) -> None:
        self._tensor = tensor
        self._factors = list(factors)

    def replace(self, mode: int, factor: Any) -> None:
        """Put a new factor in the place of an old one.

        Parameters
        ----------
        mode : int
            0 <= mode < N.
        factor : array, shape (n_mode, r)
            In the dtype of the values.
        """
        self._factors[mode] = factor

    def product(self, mode: int) -> Any:
        """Contract the tensor with all factors but one.

        Parameters
        ----------
        mode : int
            0 <= mode < N.

        Returns
        -------
        array, shape (n_mode, r)
            As of a dense tensor.
        """
        return mttkrp(self._tensor, self._factors, mode)


def group_modes(shape: Sequence[int], rank: int) -> list[tuple[int, ...]]:
    """Join neighbouring modes into the groups that a dimension tree contracts at once.

    Many groups mean few passes over the tensor, N / (N - 1) per sweep for N of them; long groups
    mean small partial results, r / n times the tensor for a group of length n.

    Parameters
    ----------
    shape : sequence of N >= 2 int
        Of the tensor.
    rank : int
        Number of terms.

    Returns
    -------
    list of tuples of int
        At least two, in order.

    Examples
    --------
    >>> group_modes((100, 100, 100), 10)
    [(0,), (1,), (2,)]
    >>> group_modes((2,) * 12, 3)
    [(0, 1, 2, 3, 4, 5), (6, 7, 8, 9, 10, 11)]
    """
    candidates = list(_partitions(shape))
    return min(candidates, key=lambda groups: _sweep_cost(shape, rank, groups))


def _is_fortran_only(tensor: Any) -> bool:
    """Whether the first index runs fastest in memory, and no view in C order is at hand."""
    flags = getattr(tensor, "flags", None)
    return flags is not None and bool(flags.f_contiguous) and not bool(flags.c_contiguous)


def _partitions(shape: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Cut the modes into neighbourhoods: all ways for low orders, balanced ones beyond."""
    order = len(shape)
    if order <= 8:
        for cuts in range(1, 2 ** (order - 1)):
            yield _cut(order, {k for k in range(1, order) if cuts >> (k - 1) & 1})
        return
    length = math.prod(shape)
    for parts in range(2, order + 1):
        bounds, product, share = set(), 1, 1
        for k, n in enumerate(shape):
            if product >= length ** (share / parts) and k > 0:
                bounds.add(k)
                share += 1
            product *= n
        if bounds:
            yield _cut(order, bounds)


def _cut(order: int, starts: set[int]) -> list[tuple[int, ...]]:
    """Cut before every mode that starts a group, beside the first."""
    groups: list[list[int]] = [[0]]
    for k in range(1, order):
        if k in starts:
            groups.append([])
        groups[-1].append(k)
    return [tuple(group) for group in groups]


def _sweep_cost(shape: Sequence[int], rank: int, groups: Sequence[tuple[int, ...]]) -> float:
    """Estimate the entries that are read or multiplied in a sweep; infinite for too much memory."""
    size = float(math.prod(shape))
    total = 0.0
    for group in groups:
        length = math.prod(shape[k] for k in group)
        partial = size * rank / length
        if partial > max(size, _SMALL) and len(groups) > 2:
            return math.inf
        reads = 1.0 if len(groups) == 2 else 2.0
        total += size * (1.0 + rank / 16.0) + partial * (1.0 + reads)
    return total / (len(groups) - 1)
