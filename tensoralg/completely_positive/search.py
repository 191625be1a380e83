"""What a detection knows while it runs: the tensor, the best atoms, the evidence so far."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tensoralg.completely_positive.tensor_input import ExactTensor
from tensoralg.completely_positive.zero_pattern import maximal_supports
from tensoralg.core.decompositions import SymmetricDecomposition

__all__ = ["Search", "Support"]

Support = tuple[int, ...]
Atoms = npt.NDArray[np.float64]

# a rebuilt tensor that is this near, relative to the norm, decides
REBUILT = 1e-9
_ROUNDING = 1e-14


@dataclass
class Search:
    """A detection under way.

    Attributes
    ----------
    tensor : ExactTensor
        As given.
    rng : Generator
        Source of all random choices.
    solver : str
        Name of the conic solver, or "auto".
    active : tuple of int
        Indices with a positive diagonal entry; all others carry zeros only.
    core : ExactTensor
        The tensor on the active indices.
    supports : list of tuple of int, or None
        Maximal supports of atoms of `core`; None where nothing is known of them.
    decomposition : SymmetricDecomposition or None
        The best so far, with its relative `residual`.
    exact : list of (Fraction, tuple of Fraction), or None
        Weighted atoms that rebuild `tensor` exactly, where some were found.
    inside : bool
        False once rational atoms were sought as they exist inside the cone, in vain.
    order, shift : int or None, float or None
        Of the last relaxation that was solved.
    evidence : list of str
        What was tried and seen.

    Examples
    --------
    >>> from tensoralg.completely_positive.tensor_input import read_tensor
    >>> Search(read_tensor([[1, 0], [0, 1]]), np.random.default_rng(0)).supports
    [(0,), (1,)]
    """

    tensor: ExactTensor
    rng: np.random.Generator
    solver: str = "auto"
    decomposition: SymmetricDecomposition | None = None
    residual: float = float("inf")
    exact: list[tuple[Fraction, tuple[Fraction, ...]]] | None = None
    inside: bool = True
    order: int | None = None
    shift: float | None = None
    evidence: list[str] = field(default_factory=list)
    active: Support = field(init=False)
    core: ExactTensor = field(init=False)
    supports: list[Support] | None = field(init=False)

    def __post_init__(self) -> None:
        d, n = self.tensor.order, self.tensor.dimension
        self.active = tuple(i for i in range(n) if self.tensor.lookup[(i,) * d] > 0)
        whole = len(self.active) == n
        self.core = self.tensor if whole else self.tensor.restrict(self.active)
        threshold = _ROUNDING if self.tensor.noise else 0.0
        self.supports = maximal_supports(self.core, threshold=threshold)

    @property
    def rebuilt(self) -> bool:
        """Whether the best atoms so far rebuild the tensor."""
        return self.residual <= REBUILT

    def offer(self, atoms: Atoms) -> bool:
        """Take nonnegative atoms of the scaled core; say whether they rebuild the given tensor."""
        d, n = self.tensor.order, self.tensor.dimension
        if not np.isfinite(atoms).all():
            return False
        points = np.zeros((len(atoms), n))
        size = float(self.tensor.mass) ** (1.0 / d)
        points[:, list(self.active)] = np.maximum(atoms, 0.0) * size
        points = points[points.any(axis=1)] + 0.0
        found = SymmetricDecomposition(np.ones(len(points)), points, order=d)
        residual = found.residual(self.tensor.symmetric)
        if residual < self.residual:
            self.decomposition, self.residual = found, residual
        return residual <= REBUILT
