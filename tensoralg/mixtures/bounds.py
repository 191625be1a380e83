"""How many components distinct-index moments can determine, and by which split of the coordinates.

A *split* ``(p, k)`` puts k coordinates into a block S and the others into T. Monomials of degree
up to p over S index the rows of a flattening, monomials over T its columns.
"""

from bisect import bisect_left
from math import comb
from typing import Literal, get_args

from tensoralg.mixtures.moment_input import checked_integer

__all__ = [
    "Form",
    "best_split",
    "component_bound",
    "counting_bound",
    "feasible_splits",
    "variance_bound",
]

Form = Literal["homogeneous", "affine", "power"]


def component_bound(dimension: int, order: int, *, form: Form = "affine") -> int:
    """Largest number of components that a linear-algebra step recovers from exact moments.

    With m the order, d the dimension, and the maximum over all splits (p, k), 1 <= p <= m - 2:

    - ``"homogeneous"``: min(C(k, p), C(d-k-2, m-p-1)), the form of the papers;
    - ``"affine"``: min(sum_{q<=p} C(k, q), sum_{q<=m-p-1} C(d-k-1, q));
    - ``"power"``: min(C(k+p, p), C(d-k-1+m-p-1, m-p-1)), where powers of one coordinate are
      further features of its block.

    Parameters
    ----------
    dimension : int
        Number of coordinates d >= 1.
    order : int
        Highest degree m >= 3 of the moments.
    form : {"affine", "homogeneous", "power"}
        Which moments the step reads.

    Returns
    -------
    int
        The bound. The affine and the power form give at least 1 in every dimension; the
        homogeneous form gives 0 where no split exists (for instance d = 3, m = 3).

    Raises
    ------
    ValueError
        If order < 3, dimension < 1, or the form is unknown.

    References
    ----------
    .. [1] B. Guo, J. Nie, Z. Yang, "Learning diagonal Gaussian mixture models and incomplete
       tensor decompositions", arXiv:2102.04500.
    .. [2] B. Guo, J. Nie, Z. Yang, "Diagonal Gaussian mixture models and higher order tensor
       decompositions", arXiv:2401.01337.

    Examples
    --------
    >>> component_bound(15, 3), component_bound(15, 3, form="homogeneous")
    (8, 6)
    """
    d, m = _checked(dimension, order, form)
    return max(_room(d, m, p, k, form) for p, k in _candidates(d, m, form))


def best_split(dimension: int, order: int, *, form: Form = "affine") -> tuple[int, int]:
    """Split of the coordinates that attains `component_bound`.

    Parameters
    ----------
    dimension : int
        Number of coordinates d >= 1.
    order : int
        Highest degree m >= 3 of the moments.
    form : {"affine", "homogeneous", "power"}
        Which moments the step reads.

    Returns
    -------
    tuple of int
        ``(p, k)``: degree over the block S, and its number of coordinates. Among equals the one
        whose larger side is largest, then the smallest p, then the smallest k.

    Raises
    ------
    ValueError
        If order < 3, dimension < 1, or the form is unknown.

    Examples
    --------
    >>> best_split(15, 3)
    (1, 7)
    """
    d, m = _checked(dimension, order, form)
    return min(_candidates(d, m, form), key=lambda split: _preference(d, m, split, form))


def feasible_splits(
    dimension: int, order: int, rank: int, *, form: Form = "affine"
) -> list[tuple[int, int]]:
    """Every split of the coordinates with room for `rank` components, roomiest first.

    Parameters
    ----------
    dimension : int
        Number of coordinates d >= 1.
    order : int
        Highest degree m >= 3 of the moments.
    rank : int
        Number of components, at least 1.
    form : {"affine", "homogeneous", "power"}
        Which moments the step reads.

    Returns
    -------
    list of tuple of int
        Pairs ``(p, k)`` ordered as in `best_split`; empty when rank exceeds `component_bound`.

    Raises
    ------
    ValueError
        If order < 3, dimension < 1, rank < 1, or the form is unknown.

    Examples
    --------
    >>> feasible_splits(15, 3, 8)
    [(1, 7)]
    >>> feasible_splits(15, 3, 9)
    []
    """
    d, m = _checked(dimension, order, form)
    r = checked_integer(rank, "rank", 1)
    found = []
    for p in range(1, m - 1):
        found += [(p, k) for k in range(d) if _room(d, m, p, k, form) >= r]
    return sorted(found, key=lambda split: _preference(d, m, split, form))


def counting_bound(dimension: int, order: int) -> int:
    """Largest number of components with no more unknowns than distinct-index moments.

    A component has d means and a weight; the moments are the square-free monomials of degree 0 to
    m: floor(sum_{q<=m} C(d, q) / (d + 1)). Beyond it the means cannot be identified from these
    moments by any method.

    Parameters
    ----------
    dimension : int
        Number of coordinates d >= 1.
    order : int
        Highest degree m >= 3 of the moments.

    Returns
    -------
    int
        The bound, at least 1.

    Raises
    ------
    ValueError
        If order < 3 or dimension < 1.

    Examples
    --------
    >>> counting_bound(8, 3)
    10
    """
    d, m = _checked(dimension, order, "affine")
    return _square_free(d, m) // (d + 1)


def variance_bound(dimension: int, order: int) -> int:
    """Largest number of components whose variances the moments determine, given the means.

    The variances of coordinate j are solved from the moments x_j^2 x^g, g square-free without j,
    of degree up to m: sum_{q<=m-2} C(d-1, q) equations.

    Parameters
    ----------
    dimension : int
        Number of coordinates d >= 1.
    order : int
        Highest degree m >= 3 of the moments.

    Returns
    -------
    int
        The bound, at least 1.

    Raises
    ------
    ValueError
        If order < 3 or dimension < 1.

    Examples
    --------
    >>> variance_bound(15, 3)
    15
    """
    d, m = _checked(dimension, order, "affine")
    return _square_free(d - 1, m - 2)


def _square_free(dimension: int, degree: int) -> int:
    return sum(comb(dimension, q) for q in range(min(degree, dimension) + 1))


def _sides(d: int, m: int, p: int, k: int, form: Form) -> tuple[int, int]:
    """Numbers of rows and columns of the flattening that the split (p, k) offers."""
    others, degree = d - k - 1, m - p - 1
    if form == "homogeneous":
        return comb(k, p), comb(max(others - 1, 0), degree)
    if form == "affine":
        return _square_free(k, p), _square_free(others, degree)
    return comb(k + p, p), comb(others + degree, degree)


def _room(d: int, m: int, p: int, k: int, form: Form) -> int:
    return min(_sides(d, m, p, k, form))


def _preference(d: int, m: int, split: tuple[int, int], form: Form) -> tuple[int, int, int, int]:
    """Sort key: the roomiest split comes first."""
    sides = _sides(d, m, *split, form)
    return (-min(sides), -max(sides), *split)


def _candidates(d: int, m: int, form: Form) -> list[tuple[int, int]]:
    """For each p the block sizes around the crossing of the growing and the shrinking side."""
    candidates = []
    for p in range(1, m - 1):

        def excess(k: int, p: int = p) -> int:
            left, right = _sides(d, m, p, k, form)
            return left - right

        crossing = bisect_left(range(d), 0, key=excess)
        candidates += [(p, k) for k in (crossing - 1, crossing) if 0 <= k < d]
    return candidates


def _checked(dimension: int, order: int, form: str) -> tuple[int, int]:
    if form not in get_args(Form):
        raise ValueError(
            f"form must be one of {', '.join(map(repr, get_args(Form)))}, got {form!r}"
        )
    return checked_integer(dimension, "dimension", 1), checked_integer(order, "order", 3)
