"""What the zeros of a completely positive tensor say about the supports of its atoms.

Where A_a = 0 no atom is positive on all of supp(a), so every atom lives on a maximal support that
is still allowed.
"""

from fractions import Fraction

from tensoralg.completely_positive.tensor_input import ExactTensor

__all__ = ["forbidden_supports", "maximal_supports"]

Support = tuple[int, ...]

_MOST_SETS = 2_000


def forbidden_supports(tensor: ExactTensor, *, threshold: float = 0.0) -> list[Support]:
    """List the inclusion-minimal supports that the zeros forbid.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries.
    threshold : float, default 0
        Entries up to this, relative to the mass, count as zero.

    Returns
    -------
    list of tuple of int
        Shortest first.
    """
    bound = Fraction(threshold) * tensor.mass
    zeros = {
        tuple(sorted(set(row)))
        for row, value in zip(tensor.rows, tensor.values, strict=True)
        if value <= bound
    }
    minimal: list[Support] = []
    for support in sorted(zeros, key=lambda s: (len(s), s)):
        members = set(support)
        if not any(members.issuperset(smaller) for smaller in minimal):
            minimal.append(support)
    return minimal


def maximal_supports(tensor: ExactTensor, *, threshold: float = 0.0) -> list[Support] | None:
    """List the maximal supports that the zeros allow: the cliques of the zero pattern.

    Parameters
    ----------
    tensor : ExactTensor
        Nonnegative entries.
    threshold : float, default 0
        Entries up to this, relative to the mass, count as zero.

    Returns
    -------
    list of tuple of int, or None
        Lexicographic; None where there are too many sets to list.
    """
    # Berge: the complements are the minimal sets that meet every forbidden support
    removals = [0]
    for support in forbidden_supports(tensor, threshold=threshold):
        edge = sum(1 << i for i in support)
        meeting = [removal for removal in removals if removal & edge]
        grown = {removal | 1 << i for removal in removals if not removal & edge for i in support}
        new = [g for g in grown if not any(removal & g == removal for removal in meeting)]
        removals = meeting + _minimal(new)
        if len(removals) > _MOST_SETS:
            return None
    n = tensor.dimension
    supports = [tuple(i for i in range(n) if not removal >> i & 1) for removal in removals]
    return sorted(support for support in supports if support)


def _minimal(masks: list[int]) -> list[int]:
    kept: list[int] = []
    for mask in sorted(masks, key=int.bit_count):
        if not any(smaller & mask == smaller for smaller in kept):
            kept.append(mask)
    return kept
