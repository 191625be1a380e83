"""How many moments there are, before any memory is taken for them."""

from tensoralg.core.indices import number_of_multi_indices
from tensoralg.solvers.block_read_out import block_bound

__all__ = ["check_moments_fit", "moments_fit"]

# moments beyond the first number take longer than the read-out; beyond the second, gigabytes
_SLOW = 2**20
_TOO_MANY = 2**24
# and so does the normal matrix of the means, whose order is r d
_SLOW_MEANS = 2**12
_TOO_MANY_MEANS = 2**13


def moments_fit(dimension: int, n_components: int, order: int, *, again: bool) -> bool:
    """Decide whether moments are accumulated, or the three-block read-out takes their place.

    Parameters
    ----------
    dimension : int
        Number of columns d.
    n_components : int
        Number of components r.
    order : int
        Highest order m of the moments.
    again : bool
        Whether the rows can be read more than once, which the read-out needs.

    Returns
    -------
    bool
        True where there are at most 2**20 moments C(d + m, m) and 2**12 unknowns r d; at most
        2**24 and 2**13 where the read-out is not possible.

    Examples
    --------
    >>> moments_fit(100, 5, 3, again=True), moments_fit(2000, 5, 3, again=True)
    (True, False)
    """
    count = number_of_multi_indices(dimension + 1, order)
    possible = again and n_components <= block_bound(dimension)
    moments = _SLOW if possible else _TOO_MANY
    means = _SLOW_MEANS if possible else _TOO_MANY_MEANS
    return count <= moments and dimension * n_components <= means


def check_moments_fit(dimension: int, order: int) -> None:
    """Refuse to accumulate more moments than memory holds."""
    count = number_of_multi_indices(dimension + 1, order)
    if count > _TOO_MANY:
        raise ValueError(
            f"X has {dimension} columns, hence {count:.2g} moments of order up to {order}: too "
            "many for memory. Use fit with an array or a list of chunks: for many columns it "
            "reads the rows several times"
        )
