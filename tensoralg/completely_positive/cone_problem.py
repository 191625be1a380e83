"""Linear problems over the cone of completely positive tensors, in arrays.

A tensor C acts on X by the form ``<C, u^d>``, whose coefficients are the entries of C times their
multiplicities: ``<C, X> = coefficients . X.entries``. Everything here is kept in such coefficients.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from tensoralg.core.errors import NotSymmetricError, ShapeError
from tensoralg.core.index_maps import insertion_positions, listed_multiplicities
from tensoralg.core.indices import multi_indices
from tensoralg.core.monomials import evaluate_monomials
from tensoralg.core.symmetric_tensor import SymmetricTensor

__all__ = [
    "SENSES",
    "ConeProblem",
    "cone_problem",
    "form_gradients",
    "form_values",
    "linear_program",
]

SENSES = ("==", "<=", ">=")

Floats = npt.NDArray[np.float64]

_linprog: Any = linprog  # its overloads do not know the options
_TOLERANCES = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True, eq=False)
class ConeProblem:
    """Minimise ``cost . X`` subject to ``rows X (senses) bounds``, X completely positive.

    Attributes
    ----------
    order, dimension : int
        Order d and dimension n of X.
    cost : ndarray, shape (K,)
        Coefficients of the objective's form, K = C(n+d-1, d).
    rows : ndarray, shape (q, K)
        Coefficients of the constraints' forms.
    senses : tuple of str
        ``"=="``, ``"<="`` or ``">="`` for every row.
    bounds : ndarray, shape (q,)
        Right-hand sides.
    """

    order: int
    dimension: int
    cost: Floats
    rows: Floats
    senses: tuple[str, ...]
    bounds: Floats

    @property
    def mass(self) -> Floats:
        """Coefficients of ``<e^d, X>``, the sum of all entries of X."""
        return np.asarray(listed_multiplicities(self.dimension, self.order), dtype=np.float64)

    @property
    def signs(self) -> npt.NDArray[np.int64]:
        """Sign that a multiplier of each row may have: 0 (free), -1 for <=, 1 for >=."""
        return np.array([{"==": 0, "<=": -1, ">=": 1}[s] for s in self.senses], dtype=np.int64)

    def with_row(self, row: Floats, sense: str, bound: float) -> "ConeProblem":
        """Return the problem with one more constraint."""
        return ConeProblem(
            self.order,
            self.dimension,
            self.cost,
            np.vstack([self.rows, row]),
            (*self.senses, sense),
            np.append(self.bounds, bound),
        )

    def in_own_units(self) -> tuple["ConeProblem", tuple[float, float]]:
        """Scale forms and numbers to size 1; also return the units of the objective and of X."""
        cost = float(np.abs(self.cost).max(initial=0.0)) or 1.0
        sizes = np.abs(self.rows).max(axis=1, initial=0.0)
        sizes = np.where(sizes > 0, sizes, 1.0)
        with np.errstate(over="ignore"):
            bounds = self.bounds / sizes
        unit = float(np.abs(bounds).max(initial=0.0)) or 1.0
        if not np.isfinite(cost * unit):
            raise ValueError(
                "C and constraints must be of sizes whose products fit a double: entries of C up "
                f"to {cost:.0e}, of X up to about {unit:.0e}"
            )
        scaled = replace(
            self, cost=self.cost / cost, rows=self.rows / sizes[:, None], bounds=bounds / unit
        )
        return scaled, (cost, unit)


def cone_problem(C: Any, constraints: Sequence[Any]) -> ConeProblem:
    """Check the input of `minimize` and take its arrays.

    Parameters
    ----------
    C : SymmetricTensor or array_like, shape (n,) * d
        The objective.
    constraints : sequence of (SymmetricTensor or array_like, str, float)
        Tensors of the same order and dimension, ``"=="``, ``"<="`` or ``">="``, and numbers.

    Returns
    -------
    ConeProblem
        The coefficients of all forms.

    Raises
    ------
    ShapeError
        A tensor has no shape ``(n,) * d``, or a constraint's has another order or dimension than C.
    NotSymmetricError
        A tensor is not symmetric.
    ValueError
        A complex tensor, an unknown sense, a number that is not finite, or an item that is not a
        triple. All messages name the argument.
    """
    objective = _real_tensor("C", C)
    order, dimension = objective.order, objective.dimension
    weights = np.asarray(objective.multiplicities, dtype=np.float64)
    rows, senses, bounds = [], [], []
    if not isinstance(constraints, Iterable):
        raise TypeError(f"constraints must be a sequence of triples; got {constraints!r}")
    for j, item in enumerate(constraints):
        if not isinstance(item, tuple | list) or len(item) != 3:
            raise ValueError(f"constraints[{j}] must be (tensor, sense, number); got {item!r}")
        tensor = _real_tensor(f"constraints[{j}][0]", item[0])
        if (tensor.order, tensor.dimension) != (order, dimension):
            raise ShapeError(
                f"constraints[{j}] has order {tensor.order} and dimension {tensor.dimension}; "
                f"C has order {order} and dimension {dimension}"
            )
        if item[1] not in SENSES:
            raise ValueError(f"constraints[{j}] must say one of {SENSES}; got {item[1]!r}")
        rows.append(weights * tensor.entries)
        senses.append(str(item[1]))
        bounds.append(_finite_number(f"constraints[{j}][2]", item[2]))
    return ConeProblem(
        order,
        dimension,
        weights * objective.entries,
        np.array(rows, dtype=np.float64).reshape(len(rows), len(weights)),
        tuple(senses),
        np.array(bounds, dtype=np.float64),
    )


def linear_program(cost: Floats, **options: Any) -> Any:
    """Solve a linear program to the accuracy that verdicts on feasibility need.

    Parameters
    ----------
    cost : ndarray, shape (q,)
        To be minimised.
    **options
        As in `scipy.optimize.linprog`.

    Returns
    -------
    OptimizeResult or None
        None where there is no optimum, or none was found.
    """
    result = _linprog(cost, options=_TOLERANCES, **options)
    return result if result.status == 0 and result.x is not None else None


def form_values(coefficients: Floats, points: Floats, order: int) -> Floats:
    """Evaluate forms at points.

    Parameters
    ----------
    coefficients : ndarray, shape (..., K)
        Coefficients of forms of degree d over the sorted multi-indices.
    points : ndarray, shape (r, n)
        One point per row.
    order : int
        The degree d.

    Returns
    -------
    ndarray, shape (..., r)
        The values.
    """
    indices = multi_indices(points.shape[1], order)
    result: Floats = coefficients @ evaluate_monomials(points, indices).T
    return result


def form_gradients(coefficients: Floats, points: Floats, order: int) -> Floats:
    """Gradients of forms at points.

    Parameters
    ----------
    coefficients : ndarray, shape (q, K)
        Coefficients of forms of degree d over the sorted multi-indices.
    points : ndarray, shape (r, n)
        One point per row.
    order : int
        The degree d.

    Returns
    -------
    ndarray, shape (q, r, n)
        The partial derivatives.
    """
    n = points.shape[1]
    tensors = coefficients / listed_multiplicities(n, order)
    weights = order * listed_multiplicities(n, order - 1)
    slices = tensors[:, insertion_positions(n, order)] * weights  # (q, n, K of degree d - 1)
    monomials = evaluate_monomials(points, multi_indices(n, order - 1))
    result: Floats = np.swapaxes(slices @ monomials.T, 1, 2)
    return result


def _real_tensor(name: str, value: Any) -> SymmetricTensor:
    """Read a tensor; Fractions become floats, and errors name the argument."""
    try:
        if isinstance(value, SymmetricTensor):
            tensor = value
        else:
            array = np.asarray(value)
            if array.dtype == object:
                array = array.astype(np.float64)
            tensor = SymmetricTensor.from_dense(array)
    except (NotSymmetricError, ShapeError) as error:
        # minimize has no such option; the function that has it is named
        text = str(error).replace("symmetrize=True", "SymmetricTensor.from_dense(symmetrize=True)")
        raise type(error)(f"{name}: {text}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
    if tensor.dtype.kind == "c":
        raise ValueError(f"{name} must be real; got dtype {tensor.dtype}")
    return tensor


def _finite_number(name: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, str | bytes) else np.nan
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if not np.isfinite(number):
        raise ValueError(f"{name} must be a finite real number; got {value!r}")
    return number
