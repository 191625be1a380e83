"""The example tensors: their formulas, and that detection proves them completely positive."""

from fractions import Fraction
from itertools import product
from math import factorial

import numpy as np
import pytest

from tensoralg.completely_positive import cauchy, detect, hilbert, lehmer, minimum, pascal
from tensoralg.solvers.moment_curve import nodes_and_weights

FORMULAS = {
    hilbert: lambda *i: Fraction(1, sum(i) - len(i) + 1),
    cauchy: lambda *i: Fraction(1, sum(i)),
    pascal: lambda *i: Fraction(
        factorial(sum(k - 1 for k in i)), int(np.prod([factorial(k - 1) for k in i]))
    ),
    lehmer: lambda *i: Fraction(min(i), max(i)),
    minimum: lambda *i: Fraction(min(i)),
}


@pytest.mark.parametrize("build", FORMULAS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("n", "d"), [(1, 2), (3, 2), (3, 3), (2, 4)])
def test_entries_follow_the_formula_exactly(build, n, d):
    exact, floats = build(n, d, exact=True), build(n, d)
    assert exact.shape == (n,) * d
    for i in product(range(n), repeat=d):
        assert exact[i] == FORMULAS[build](*(k + 1 for k in i))
        assert floats[i] == float(exact[i])


@pytest.mark.parametrize("build", FORMULAS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("n", "d"), [(3, 3), (4, 3), (3, 4), (4, 4), (5, 2), (6, 3)])
def test_all_are_completely_positive(build, n, d):
    found = detect(build(n, d))
    assert found.verdict == "completely positive"
    assert found.decomposition.residual(build(n, d)) <= 1e-9


@pytest.mark.parametrize("build", [hilbert, cauchy, pascal], ids=lambda f: f.__name__)
@pytest.mark.parametrize(("n", "d"), [(4, 3), (3, 4), (5, 4)])
def test_strong_hankel_tensors_get_the_least_number_of_atoms(build, n, d):
    assert detect(build(n, d)).decomposition.rank == (d * (n - 1)) // 2 + 1


def test_scales_and_order_of_the_indices_do_not_hide_a_hankel_tensor():
    scales, order = np.array([0.3, 2.0, 1.0, 1.7]), [2, 0, 3, 1]
    A = hilbert(4, 4).to_dense() * np.einsum("i,j,k,l->ijkl", scales, scales, scales, scales)
    A = A[np.ix_(order, order, order, order)]
    found = detect(A, symmetrize=True)
    assert found.verdict == "completely positive"
    assert "Hankel" in found.message


def test_quadrature_stops_at_the_points_there_are():
    points, masses = (Fraction(0), Fraction(1, 2), Fraction(2)), (1, 2, 3)
    moments = [sum(m * t**k for m, t in zip(masses, points, strict=True)) for k in range(10)]
    nodes, weights = nodes_and_weights(moments)
    np.testing.assert_allclose(nodes, [0, 0.5, 2], atol=1e-12)
    np.testing.assert_allclose(weights, masses, rtol=1e-12)


@pytest.mark.parametrize("build", FORMULAS, ids=lambda f: f.__name__)
def test_sizes_below_one_are_refused(build):
    with pytest.raises(ValueError, match="n must be at least 1"):
        build(0, 3)
    with pytest.raises(ValueError, match="d must be at least 1"):
        build(3, 0)
