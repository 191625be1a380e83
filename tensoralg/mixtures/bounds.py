"""How many components distinct-index moments can determine."""

from tensoralg.core.monomials import number_of_monomials
from tensoralg.mixtures.moment_input import checked_integer
from tensoralg.solvers.coordinate_splits import Form, largest_rank

__all__ = ["component_bound", "counting_bound", "variance_bound"]


def component_bound(dimension: int, order: int, *, form: Form = "affine") -> int:
    """Largest number of components that a linear-algebra step recovers from exact moments.

    With m the order, d the dimension, and the maximum over all splits of the coordinates into a
    block of k, whose monomials have degree p <= m - 2, and the others:

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
    d, m = _checked(dimension, order)
    return largest_rank(d, m, form)


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
    d, m = _checked(dimension, order)
    return number_of_monomials(d, m) // (d + 1)


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
    d, m = _checked(dimension, order)
    return number_of_monomials(d - 1, m - 2)


def _checked(dimension: int, order: int) -> tuple[int, int]:
    return checked_integer(dimension, "dimension", 1), checked_integer(order, "order", 3)
