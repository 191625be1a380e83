"""Kruskal tensors: sums of rank-one terms, the result of a polyadic decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
import numpy.typing as npt

from tensoralg.core.errors import ShapeError
from tensoralg.core.kruskal_products import (
    as_data,
    as_matching_arrays,
    dense_model,
    slab_residuals,
    term_cosines,
    unit_columns,
)

__all__ = ["KruskalTensor"]


@dataclass(frozen=True, slots=True, eq=False, init=False, repr=False)
class KruskalTensor:
    """A sum of r rank-one terms, weighted outer products of the factors' columns.

    Its entries are ``sum_s weights[s] * factors[0][i_1, s] * .. * factors[-1][i_N, s]``.

    Parameters
    ----------
    weights : array_like, shape (r,), or None
        Real and finite; None means ones. Copied; numpy arrays become read-only.
    factors : sequence of array_like, shapes (shape[k], r)
        One matrix per mode, at least one, of the weights' array library, finite. A mode may be
        empty, and r may be 0.

    Raises
    ------
    ShapeError
        No factor, one that is no matrix, or numbers of columns that differ.
    TypeError
        Arrays of different libraries.
    ValueError
        Complex or another unsupported dtype, a NaN or infinite value.

    References
    ----------
    .. [1] B. W. Bader and T. G. Kolda, "Efficient MATLAB computations with sparse and factored
       tensors", SIAM J. Sci. Comput. 30 (2007), section 5.

    Examples
    --------
    >>> K = KruskalTensor([2.0], [[[1.0], [3.0]], [[1.0], [0.0], [1.0]]])
    >>> K.shape, K.rank, K.to_dense().tolist()
    ((2, 3), 1, [[2.0, 0.0, 2.0], [6.0, 0.0, 6.0]])
    """

    weights: Any
    factors: tuple[Any, ...]

    def __init__(self, weights: npt.ArrayLike | None, factors: Sequence[Any]) -> None:
        given = list(factors)
        if not given:
            raise ShapeError("factors must hold at least one matrix; got none")
        names = [f"factors[{k}]" for k in range(len(given))]
        if weights is None:
            xp, matrices = as_matching_arrays(names, given)
        else:
            xp, (*matrices, scale) = as_matching_arrays([*names, "weights"], [*given, weights])
        rank = matrices[0].shape[-1] if matrices[0].ndim else 0
        for name, matrix in zip(names, matrices, strict=True):
            if matrix.ndim != 2 or matrix.shape[1] != rank:
                raise ShapeError(
                    "factors must be matrices of shape (shape[k], r) with one r; "
                    f"{name} has shape {tuple(matrix.shape)}, factors[0] {matrices[0].shape}"
                )
        if weights is None:
            device = array_api_compat.device(matrices[0])
            scale = xp.ones(rank, dtype=matrices[0].dtype, device=device)
        if tuple(scale.shape) != (rank,):
            raise ShapeError(f"weights must have shape (r,) = ({rank},); got {tuple(scale.shape)}")
        object.__setattr__(self, "weights", scale)
        object.__setattr__(self, "factors", tuple(matrices))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.weights, self.factors)

    def __repr__(self) -> str:
        return f"KruskalTensor(shape={self.shape}, rank={self.rank}, dtype={self.dtype})"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor: the factors' numbers of rows."""
        return tuple(int(factor.shape[0]) for factor in self.factors)

    @property
    def order(self) -> int:
        """Number of modes."""
        return len(self.factors)

    @property
    def rank(self) -> int:
        """Number r of terms."""
        return int(self.factors[0].shape[1])

    @property
    def dtype(self) -> Any:
        """Common dtype of the weights and factors."""
        return self.weights.dtype

    def to_dense(self) -> Any:
        """Sum the terms.

        Returns
        -------
        array, shape `shape`
            In the factors' dtype and library.

        Examples
        --------
        >>> KruskalTensor([1.0, 1.0], [[[1.0, 0.0], [0.0, 1.0]]] * 2).to_dense().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        return dense_model(self._namespace(), self.weights, self.factors)

    def norm(self) -> float:
        """Frobenius norm, from the Gram matrices of the factors.

        Returns
        -------
        float
            In double precision. Terms that cancel leave an error of about 1e-8 of their sizes,
            the square root of the rounding of the Gram matrices.

        Examples
        --------
        >>> KruskalTensor([5.0], [[[3.0], [4.0]], [[1.0]]]).norm()
        25.0
        """
        xp, scale, units = self._unit_terms()
        largest = float(xp.max(xp.abs(scale))) if self.rank else 0.0
        if largest == 0.0:
            return 0.0
        relative = scale / largest
        gram = term_cosines(xp, units, units)
        square = float(xp.sum(relative * (gram @ relative)))
        return float(largest * max(square, 0.0) ** 0.5)

    def normalize(self) -> "KruskalTensor":
        """Give every column length one, make the weights positive and sort the terms by weight.

        Returns
        -------
        KruskalTensor
            Of the same tensor. The largest entry of every column (the first of them) is positive
            in all modes but the last, which carries the sign of the term. The largest weight
            comes first. A zero term has weight 0.

        Examples
        --------
        >>> K = KruskalTensor([1.0, -2.0], [[[2.0, 0.0], [0.0, 3.0]], [[1.0, -1.0]]]).normalize()
        >>> K.weights.tolist(), K.factors[1].tolist()
        ([6.0, 2.0], [[1.0, 1.0]])
        """
        xp, scale, units = self._unit_terms()
        sign = xp.where(scale < 0, -xp.ones_like(scale), xp.ones_like(scale))
        turned = []
        for unit in units[:-1]:
            turn = _leading_signs(xp, unit)
            turned.append(unit * turn)
            sign = sign * turn
        turned.append(units[-1] * sign)
        by_weight = xp.argsort(-xp.abs(scale), stable=True)
        columns = [xp.astype(xp.take(u, by_weight, axis=1), self.dtype, copy=False) for u in turned]
        weights = xp.astype(xp.take(xp.abs(scale), by_weight), self.dtype, copy=False)
        return KruskalTensor(weights, columns)

    def fit(self, X: Any) -> float:
        """Tell how much of a dense tensor the terms explain.

        Parameters
        ----------
        X : array_like, shape `shape`
            A dense tensor of the factors' library, finite.

        Returns
        -------
        float
            ``1 - ||X - self|| / ||X||`` in the Frobenius norm, from the differences themselves in
            double precision. For a zero tensor 1 when the model is zero too, else -infinity.

        Raises
        ------
        ShapeError
            Another shape.
        TypeError
            An array of another library.
        ValueError
            An unsupported dtype, a NaN or infinite value.

        Examples
        --------
        >>> KruskalTensor([2.0], [[[1.0], [3.0]], [[1.0]]]).fit([[2.0], [6.0]])
        1.0
        """
        xp = self._namespace()
        tensor = as_data(xp, "X", X)
        if tuple(tensor.shape) != self.shape:
            raise ShapeError(f"X must have shape {self.shape}; got {tuple(tensor.shape)}")
        magnitude = float(xp.max(xp.abs(tensor))) if 0 not in self.shape else 0.0
        error = total = 0.0
        unit = magnitude or 1.0
        for data, difference in slab_residuals(xp, tensor, self.weights, self.factors):
            error += float(xp.sum(xp.abs(difference / unit) ** 2))
            total += float(xp.sum(xp.abs(data / unit) ** 2))
        if total == 0.0:
            return 1.0 if error == 0.0 else float("-inf")
        return 1.0 - float((error / total) ** 0.5)

    def match_score(self, other: "KruskalTensor") -> float:
        """Compare the terms with those of another decomposition, in their best pairing.

        Parameters
        ----------
        other : KruskalTensor
            Of the same shape and library; its rank may differ.

        Returns
        -------
        float
            From 0 to 1: the mean over the best assignment of ``(1 - |w - v| / max(w, v)) *
            max(0, cosine)``, where w and v are the lengths of two rank-one terms and the cosine
            is that between them. Terms without a partner count as 0; two zero terms as 1.

        Raises
        ------
        ShapeError
            Another shape.
        TypeError
            Not a KruskalTensor, or one of another library.

        Notes
        -----
        The factor match score of [1]_ with the penalty on the weights of [2]_. The cosine keeps
        the sign of the terms: a term and its negative do not match.

        References
        ----------
        .. [1] G. Tomasi and R. Bro, "A comparison of algorithms for fitting the PARAFAC model",
           Comput. Stat. Data Anal. 50 (2006).
        .. [2] E. Acar, D. M. Dunlavy, T. G. Kolda and M. Morup, "Scalable tensor factorizations
           for incomplete data", Chemometr. Intell. Lab. Syst. 106 (2011), section 4.

        Examples
        --------
        >>> K = KruskalTensor([2.0, 1.0], [[[1.0, 0.0], [0.0, 1.0]]] * 3)
        >>> K.match_score(KruskalTensor([1.0, 2.0], [[[0.0, -1.0], [1.0, 0.0]]] * 2 + [
        ...     [[0.0, 1.0], [1.0, 0.0]]]))
        1.0
        """
        self._check_partner(other)
        most = max(self.rank, other.rank)
        if most == 0:
            return 1.0
        if min(self.rank, other.rank) == 0:
            return 0.0
        from scipy.optimize import linear_sum_assignment  # slow to import

        scores = _pair_scores(self, other)
        rows, columns = linear_sum_assignment(scores, maximize=True)
        return float(np.sum(scores[rows, columns]) / most)

    def allclose(self, other: "KruskalTensor", *, rtol: float = 1e-8) -> bool:
        """Tell whether two decompositions hold the same terms, in whatever order and scaling.

        Parameters
        ----------
        other : KruskalTensor
            Of the same shape and library.
        rtol : float, default 1e-8
            How far `match_score` may stay below 1.

        Returns
        -------
        bool
            True when every term has its partner.

        Raises
        ------
        ShapeError
            Another shape.
        TypeError
            Not a KruskalTensor, or one of another library.

        Examples
        --------
        >>> K = KruskalTensor([2.0], [[[1.0]], [[3.0]]])
        >>> K.allclose(KruskalTensor([6.0], [[[1.0]], [[1.0]]]))
        True
        """
        return bool(self.match_score(other) >= 1.0 - rtol)

    def to_tensorly(self) -> tuple[Any, list[Any]]:
        """Give the pair that TensorLy takes for a polyadic decomposition.

        Returns
        -------
        weights : array, shape (r,)
            A copy.
        factors : list of array, shapes (shape[k], r)
            Copies, one per mode.

        Examples
        --------
        >>> weights, factors = KruskalTensor([2.0], [[[1.0]], [[3.0]]]).to_tensorly()
        >>> weights.tolist(), [factor.tolist() for factor in factors]
        ([2.0], [[[1.0]], [[3.0]]])
        """
        xp = self._namespace()
        return xp.asarray(self.weights, copy=True), [xp.asarray(f, copy=True) for f in self.factors]

    def _namespace(self) -> Any:
        return array_api_compat.array_namespace(self.weights)

    def _unit_terms(self) -> tuple[Any, Any, list[Any]]:
        """Namespace, weights times column lengths in double precision, and unit columns."""
        xp = self._namespace()
        pairs = [unit_columns(xp, factor) for factor in self.factors]
        scale = self.weights
        for _, lengths in pairs:
            scale = scale * lengths
        return xp, scale, [unit for unit, _ in pairs]

    def _check_partner(self, other: object) -> None:
        if not isinstance(other, KruskalTensor):
            raise TypeError(f"other must be a KruskalTensor; got {type(other).__name__}")
        if other._namespace() is not self._namespace():
            raise TypeError("other holds arrays of another library; convert one of the two first")
        if other.shape != self.shape:
            raise ShapeError(f"other must have shape {self.shape}; got {other.shape}")


def _leading_signs(xp: Any, unit: Any) -> Any:
    """Sign of the first entry of (nearly) largest magnitude of every column; 1 for a zero one."""
    ones = xp.ones_like(xp.sum(unit, axis=0))
    if unit.shape[0] == 0:
        return ones
    magnitude = xp.abs(unit)
    tie = float(xp.finfo(unit.dtype).eps) ** 0.5
    close = magnitude >= (1 - tie) * xp.max(magnitude, axis=0)
    first = xp.argmax(xp.astype(close, xp.int64), axis=0)
    at_first = xp.arange(unit.shape[0])[:, None] == first[None, :]
    leading = xp.sum(xp.where(at_first, unit, xp.zeros_like(unit)), axis=0)
    return xp.where(leading < 0, -ones, ones)


def _pair_scores(first: KruskalTensor, second: KruskalTensor) -> npt.NDArray[np.float64]:
    """Scores of all pairs of terms, shape (r, s), on the host: a small matrix."""
    xp, scale, units = first._unit_terms()
    _, other_scale, other_units = second._unit_terms()
    cosines = term_cosines(xp, units, other_units)
    cosines = xp.where((scale[:, None] < 0) == (other_scale[None, :] < 0), cosines, -cosines)
    w, v = xp.abs(scale)[:, None], xp.abs(other_scale)[None, :]
    largest = xp.where(w > v, w, v)
    nothing = largest == 0
    penalty = 1 - xp.abs(w - v) / xp.where(nothing, xp.ones_like(largest), largest)
    scores = penalty * xp.clip(cosines, 0.0, 1.0)
    scores = xp.where(nothing, xp.ones_like(scores), scores)
    return np.array([[float(scores[i, j]) for j in range(second.rank)] for i in range(first.rank)])
