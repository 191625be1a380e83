"""Permutation symmetry: groups against brute force, reduced shifts against full ones."""

from itertools import permutations
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.indices import multi_indices, multiplicities, rank_multi_indices
from tensoralg.solvers.moment_matrices import dehomogenize
from tensoralg.solvers.moment_relaxation import build_relaxation
from tensoralg.solvers.permutation_symmetry import (
    reduce_symmetry,
    substitution,
    symmetry_chain,
)
from tensoralg.solvers.uniform_shift import solve_shift


def power_moments(x, degree):
    return np.r_[1, x][multi_indices(len(x) + 1, degree)].prod(axis=1)


def moved(entries, p, n, d):
    return entries[rank_multi_indices(np.sort(np.array(p)[multi_indices(n, d)], axis=1), n)]


def matrix_entries(M):
    return np.asarray(M, dtype=float)[tuple(multi_indices(len(M), 2).T)]


CIRCULANT = matrix_entries(
    [[8, 5, 1, 1, 5], [5, 8, 5, 1, 1], [1, 5, 8, 5, 1], [1, 1, 5, 8, 5], [5, 1, 1, 5, 8]]
)
SWAPS = matrix_entries([[2, 1, 3, 1], [1, 2, 1, 3], [3, 1, 4, 0], [1, 3, 0, 4]])


def by_distinct_count(n, d, values):
    return np.array([values[len(set(row)) - 1] for row in multi_indices(n, d).tolist()])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_groups_against_brute_force(n, d, seed):
    rng = np.random.default_rng(seed)
    entries = rng.integers(0, 2, len(multi_indices(n, d))).astype(float)
    chain = symmetry_chain(entries, n, d)
    expected = {p for p in permutations(range(n)) if (moved(entries, p, n, d) == entries).all()}
    products = [tuple(range(n))]
    for level in chain:
        products = [tuple(g[p[i]] for i in range(n)) for g in products for p in level]
    assert len(products) == prod(len(level) for level in chain)
    assert set(products) == expected


def test_substitution_moves_monomials():
    p, x = (2, 0, 1), np.array([0.2, 0.3])
    u = np.r_[x, 0.5]
    found = substitution(p, 4) @ power_moments(x, 4)
    np.testing.assert_allclose(found, power_moments(u[list(p)][:2], 4), rtol=1e-13)


@pytest.mark.parametrize(
    ("entries", "n", "d", "k", "free"),
    [
        (by_distinct_count(3, 3, (1, 0.3, 0.35)), 3, 3, 3, 4),
        (by_distinct_count(4, 3, (1, 0.3, 0.35)), 4, 3, 2, 2),
        (CIRCULANT, 5, 2, 2, 7),
        (SWAPS, 4, 2, 2, 13),
    ],
)
def test_reduced_shifts_agree(entries, n, d, k, free):
    entries = entries / (multiplicities(multi_indices(n, d)) @ entries)
    known = dehomogenize(entries, n, d)
    relaxation = build_relaxation(known, n - 1, d, k)
    reduced, _ = reduce_symmetry(relaxation)
    assert reduced.n_free == free < relaxation.n_free
    assert len(reduced.blocks) < len(relaxation.blocks)
    result = solve_shift(relaxation)
    assert result.conic.y.size == 1 + free
    assert result.t == pytest.approx(solve_shift(relaxation, symmetry=False).t, abs=1e-8)
    # the spread multipliers satisfy what a full solution satisfies
    p, size = relaxation.polynomial(result.multipliers), len(known)
    scale = max(abs(Q).max() for Q in result.multipliers)
    assert abs(p[size:]).max() <= 1e-10 * scale
    assert p @ relaxation.uniform == pytest.approx(1, abs=1e-9)
    assert p[:size] @ known == pytest.approx(-result.t, abs=1e-8)
    assert all(np.linalg.eigvalsh(Q)[0] >= -1e-12 * scale for Q in result.multipliers)
    np.testing.assert_allclose(
        result.moments[:size], known + result.t * relaxation.uniform[:size], atol=1e-12
    )


def test_nothing_to_reduce():
    rng = np.random.default_rng(0)
    known = rng.dirichlet(np.ones(3), 4)[:, :2]
    moments = np.mean([power_moments(x, 3) for x in known], axis=0)
    relaxation = build_relaxation(moments, 2, 3, 2)
    assert reduce_symmetry(relaxation)[0] is relaxation
    homogeneous = build_relaxation(moments, 2, 3, 2, homogeneous=True)
    assert reduce_symmetry(homogeneous)[0] is homogeneous
