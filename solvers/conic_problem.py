"""The one conic form that all solvers are given, and the one form in which they answer.

Primal and dual, with ``S_j = h_j - smat(G_j y)``::

    minimise  c'y                       subject to  S_j positive semidefinite,  E y = f
    maximise  -sum_j <Z_j, h_j> - v'f   subject to  Z_j positive semidefinite,
                                                    c + sum_j G_j' svec(Z_j) + E'v = 0
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from tensoralg.core.errors import ShapeError
from tensoralg.solvers.svec import svec, svec_size

__all__ = ["ConicBlock", "ConicProblem", "ConicResult", "RawSolution", "Status"]

Array = NDArray[Any]
Status = Literal["solved", "inaccurate", "failed"]


def _read_only(name: str, values: Any, ndim: int) -> Array:
    """Copy of an array of finite float64 numbers, set read-only."""
    array = np.array(values, dtype=np.float64)
    if array.ndim != ndim:
        raise ShapeError(f"{name} has {array.ndim} axes: accepted is an array of {ndim}")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name}{list(where)} is {array[where]}: accepted are finite numbers")
    array.flags.writeable = False
    return array


def _sparse(name: str, values: Any) -> Any:
    """Copy as a csc array of finite float64 numbers, duplicates summed."""
    matrix = scipy.sparse.csc_array(values, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all():
        raise ValueError(f"{name} holds NaN or inf: accepted are finite numbers")
    return matrix


@dataclass(frozen=True, slots=True, eq=False)
class ConicBlock:
    """One matrix inequality: ``h - smat(G y)`` is positive semidefinite.

    Attributes
    ----------
    h : ndarray, shape (s, s)
        Symmetric matrix; only the upper triangle counts.
    G : scipy.sparse.csc_array, shape (s (s + 1) / 2, m)
        Coefficients of the m variables, rows in the order of `tensoralg.solvers.svec.svec`.

    Raises
    ------
    ShapeError
        If `h` is not square and nonempty, or `G` has another number of rows.
    ValueError
        If a number is NaN or infinite.
    """

    h: Array
    G: Any

    def __post_init__(self) -> None:
        h = _read_only("h", self.h, 2)
        if h.shape[0] != h.shape[1] or h.shape[0] == 0:
            raise ShapeError(f"h has shape {h.shape}: accepted is (s, s) with s >= 1")
        G = _sparse("G", self.G)
        if G.shape[0] != svec_size(h.shape[0]):
            raise ShapeError(
                f"G has {G.shape[0]} rows: accepted are {svec_size(h.shape[0])}, "
                f"s (s + 1) / 2 for s = {h.shape[0]}"
            )
        object.__setattr__(self, "h", h)
        object.__setattr__(self, "G", G)

    @property
    def side(self) -> int:
        """Number s of rows of the matrix."""
        return int(self.h.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class ConicProblem:
    """Minimise ``c'y`` such that every block is positive semidefinite and ``E y = f``.

    Attributes
    ----------
    c : ndarray, shape (m,)
        Objective.
    blocks : tuple of ConicBlock
        The matrix inequalities; at least one.
    equality_matrix : scipy.sparse.csc_array, shape (p, m), optional
        E.
    equality_vector : ndarray, shape (p,), optional
        f; given exactly when `equality_matrix` is.

    Raises
    ------
    ShapeError
        If shapes do not agree or there is no block.
    ValueError
        If a number is NaN or infinite.
    """

    c: Array
    blocks: tuple[ConicBlock, ...]
    equality_matrix: Any = None
    equality_vector: Array | None = None

    def __post_init__(self) -> None:
        c = _read_only("c", self.c, 1)
        blocks = tuple(self.blocks)
        if not blocks:
            raise ShapeError("blocks is empty: accepted is at least one block")
        for j, block in enumerate(blocks):
            if block.G.shape[1] != len(c):
                raise ShapeError(
                    f"blocks[{j}].G has {block.G.shape[1]} columns: accepted are {len(c)}, "
                    "one for each entry of c"
                )
        if (self.equality_matrix is None) != (self.equality_vector is None):
            raise ShapeError("equality_matrix and equality_vector: accepted are both or neither")
        E = _sparse(
            "equality_matrix",
            np.zeros((0, len(c))) if self.equality_matrix is None else self.equality_matrix,
        )
        f = _read_only(
            "equality_vector", [] if self.equality_vector is None else self.equality_vector, 1
        )
        if E.shape != (len(f), len(c)):
            raise ShapeError(
                f"equality_matrix has shape {E.shape}: accepted is {(len(f), len(c))}, "
                "the lengths of equality_vector and of c"
            )
        for name, value in (("c", c), ("blocks", blocks)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "equality_matrix", E)
        object.__setattr__(self, "equality_vector", f)

    @property
    def n_variables(self) -> int:
        """Number m of variables."""
        return len(self.c)

    @property
    def sides(self) -> tuple[int, ...]:
        """Number of rows of each block."""
        return tuple(block.side for block in self.blocks)

    @property
    def n_nonzeros(self) -> int:
        """Number of stored coefficients in all blocks and equations."""
        return int(self.equality_matrix.nnz + sum(block.G.nnz for block in self.blocks))

    def stacked(self) -> tuple[Any, Array]:
        """Equations, then blocks, one under another: ``(E; G_1; ..)`` and ``(f; svec h_1; ..)``."""
        matrices = [self.equality_matrix, *(block.G for block in self.blocks)]
        assert self.equality_vector is not None
        vectors = [self.equality_vector, *(svec(block.h) for block in self.blocks)]
        matrix = scipy.sparse.csc_array(scipy.sparse.vstack(matrices, format="csc"))
        return matrix, np.concatenate(vectors)


@dataclass(frozen=True, slots=True, eq=False)
class RawSolution:
    """What an adapter hands back: the solver's own numbers, in our order, nothing judged.

    Attributes
    ----------
    y : ndarray, shape (m,)
        Variables.
    duals : ndarray, shape (p + sum s_j (s_j + 1) / 2,)
        v, then ``svec(Z_j)`` one after another.
    word : str
        The solver's own status.
    claims_infeasible : bool
        Whether that status says that the primal or the dual has no solution.
    """

    y: Array
    duals: Array
    word: str
    claims_infeasible: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ConicResult:
    """Solution of a conic problem with residuals computed from `y` and `multipliers` alone.

    Attributes
    ----------
    y : ndarray, shape (m,)
        Variables; NaN when the solver raised.
    multipliers : tuple of ndarray, shapes (s_j, s_j)
        Z_j; at a solution positive semidefinite with
        ``c + sum_j G_j' svec(Z_j) + E'v = 0`` and ``<Z_j, h_j - smat(G_j y)> = 0``.
    equality_multipliers : ndarray, shape (p,)
        v.
    objective, dual_objective : float
        ``c'y`` and ``-sum_j <Z_j, h_j> - v'f``.
    primal_residual : float
        Largest violation of ``S_j >= 0`` (negative eigenvalue) and ``E y = f``, relative to the
        largest norm among the ``h_j`` and ``f``.
    dual_residual : float
        Largest violation of stationarity and of ``Z_j >= 0``, relative to c; every variable is
        measured in the unit that gives its column of coefficients norm 1.
    gap : float
        ``|objective - dual_objective|`` relative to the objective and to the scales of c and h.
    status : {"solved", "inaccurate", "failed"}
        Judged from the three residuals, never from the solver's word.
    message : str
        The solver's word or its exception, and what to do next.
    solver : str
        Name of the solver.
    seconds : float
        Wall time including preparation.
    """

    y: Array
    multipliers: tuple[Array, ...]
    equality_multipliers: Array
    objective: float
    dual_objective: float
    primal_residual: float
    dual_residual: float
    gap: float
    status: Status
    message: str
    solver: str
    seconds: float
