"""Copositive forms: known answers, and that every verdict carries an exact proof."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg import SymmetricTensor
from tensoralg.completely_positive import CopositivityVerdict, copositivity
from tensoralg.core.indices import multi_indices
from tensoralg.errors import NotSymmetricError

YES, NO, OPEN = CopositivityVerdict
F = Fraction
IDENTITY = np.eye(5, dtype=int).astype(object)


def circulant(*row):
    return np.array([np.roll(row, k) for k in range(len(row))]).astype(object)


HORN = circulant(1, -1, 1, 1, -1)
CYCLE = circulant(0, 1, 0, 0, 1)


def values_of(C, points):
    """<C, u^d> from the dense array, without the code under test."""
    result = []
    for point in points:
        T = np.array(C, dtype=object)
        while T.ndim:
            T = np.tensordot(T, np.array(point, dtype=object), axes=1)
        result.append(T[()])
    return result


def check(C, found):
    if found.verdict == YES:
        assert found.verify()
        assert found.point is None
        points = np.random.default_rng(0).integers(0, 9, (50, found.dimension)).tolist()
        assert min(values_of(C, points)) >= 0
    elif found.verdict == NO:
        assert found.verify()
        assert found.proof is None
        assert min(found.point) >= 0
        assert values_of(C, [found.point]) == [found.value]
        assert found.value < 0
    else:
        assert not found.verify()
        assert "no proof either way" in found.message
    return found.verdict


@pytest.mark.parametrize("shift", [0, F(1, 10**6), F(1, 10), -F(1, 10**10), -F(1, 5)])
def test_horns_form_is_on_the_boundary(shift):
    C = HORN + shift * IDENTITY
    assert check(C, copositivity(C)) == (YES if shift >= 0 else NO)


@pytest.mark.parametrize("t", [F(199, 100), 2, F(201, 100), 3])
def test_the_stability_number_of_the_pentagon(t):
    C = t * (CYCLE + IDENTITY) - 1  # copositive iff t is at least 2
    assert check(C, copositivity(C)) == (YES if t >= 2 else NO)


@pytest.mark.parametrize(
    ("C", "verdict"),
    [
        ([[1, -1], [-1, 1]], YES),
        ([[1, -3], [-3, 9]], YES),  # a zero that no bisection meets
        ([[0, 0], [0, 0]], YES),
        ([[0, 1], [1, 0]], YES),
        ([[0, -1], [-1, 5]], NO),
        ([[1, -1, F(1, 2)], [-1, 1, 0], [F(1, 2), 0, 0]], YES),  # neither semidefinite nor >= 0
        ([0, 3], YES),
        ([1, -1], NO),
        ([[[7]]], YES),
        ([[[-7]]], NO),
    ],
)
def test_small_forms(C, verdict):
    assert check(C, copositivity(C)) == verdict


def test_forms_with_irrational_zeros_stay_undecided():
    # (x^2 - 2 y^2)^2, by the number of y among the indices
    values = [F(1), F(0), F(-2, 3), F(0), F(4)]
    C = np.empty((2,) * 4, dtype=object)
    for place in np.ndindex(C.shape):
        C[place] = values[sum(place)]
    assert check(C, copositivity(C, max_leaves=100)) == OPEN


def test_polyas_multiplier():
    # x^2 - x y + y^2 is positive, but one coefficient is not
    C = [[2, -1], [-1, 2]]
    assert check(C, copositivity(C)) == YES
    cubic = SymmetricTensor.from_function(lambda *i: 9.0 if len(set(i)) == 1 else -1.0, 3, 3)
    found = copositivity(cubic)
    assert check(cubic.to_dense(), found) == YES


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_random_forms(n, d, seed):
    rng = np.random.default_rng(seed)
    C = np.empty((n,) * d, dtype=object)
    for a in multi_indices(n, d).tolist():
        value = F(int(rng.integers(-4, 9)), int(rng.integers(1, 4)))
        for place in set(np.ndindex(C.shape)):
            if sorted(place) == a:
                C[place] = value
    found = copositivity(C, max_leaves=300)
    check(C, found)
    lowest = min(values_of(C, rng.dirichlet(np.ones(n), 100).tolist()))
    assert found.least <= lowest + 1e-9


def test_changed_numbers_are_noticed():
    yes, no = copositivity(HORN), copositivity(HORN - F(1, 9) * IDENTITY)
    assert not dataclasses.replace(yes, form={**yes.form, (0, 0): F(1, 2)}).verify()
    assert not dataclasses.replace(yes, proof=None).verify()
    assert not dataclasses.replace(no, point=(F(1),) * 5).verify()
    assert not dataclasses.replace(no, point=tuple(-v for v in no.point)).verify()
    assert not dataclasses.replace(no, value=no.value / 2).verify()


def test_a_form_is_taken_as_it_was_given():
    # entries below zero by rounding are no noise of a form
    found = copositivity(np.array([[1.0, 0.0], [0.0, -1e-17]]))
    assert found.verdict == NO
    assert found.value == F(-1e-17)


def test_bad_input():
    with pytest.raises(NotSymmetricError):
        copositivity([[1, 2], [3, 1]])
    with pytest.raises(ValueError, match="max_leaves"):
        copositivity([[1]], max_leaves=0)
    with pytest.raises(TypeError, match="never a bool"):
        bool(copositivity([[1]]).verdict)
