"""KruskalTensor: sums of rank-one terms, norms, canonical form, match score, files."""

import copy
import pickle
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
import pyttb
import tensorly
from hypothesis import given
from hypothesis import strategies as st

from tensoralg import KruskalTensor, load, save
from tensoralg.errors import PersistenceError, ShapeError


def random_parts(shape: tuple[int, ...], rank: int, seed: int) -> tuple[Any, list[Any]]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(rank), [rng.standard_normal((n, rank)) for n in shape]


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
parts = st.builds(random_parts, shapes, st.integers(0, 4), st.integers(0, 999))


def plain_sum(weights: Any, factors: Any) -> Any:
    """The definition, term by term."""
    dense = np.zeros(tuple(len(f) for f in factors))
    for s, weight in enumerate(weights):
        term = np.asarray(weight)
        for factor in factors:
            term = np.multiply.outer(term, factor[:, s])
        dense = dense + term
    return dense


@given(parts)
def test_dense_form_and_norm_follow_the_definition(pair: Any) -> None:
    K = KruskalTensor(*pair)
    dense = plain_sum(*pair)
    np.testing.assert_allclose(K.to_dense(), dense, atol=1e-12)
    assert K.norm() == pytest.approx(np.linalg.norm(dense), rel=1e-6, abs=1e-7)
    assert K.fit(dense) == pytest.approx(1.0, abs=1e-12)


@given(parts)
def test_normalized_terms_keep_the_tensor(pair: Any) -> None:
    K = KruskalTensor(*pair)
    N = K.normalize()
    np.testing.assert_allclose(N.to_dense(), K.to_dense(), atol=1e-12)
    assert (np.diff(N.weights) <= 0).all()
    assert (N.weights >= 0).all()
    for factor in N.factors:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=0), 1.0)
    for factor in N.factors[:-1]:
        leading = factor[np.abs(factor).argmax(axis=0), np.arange(K.rank)]
        assert (leading > 0).all()
    assert N.match_score(K) == pytest.approx(1.0)


@given(parts, st.integers(0, 99))
def test_match_score_ignores_order_signs_and_scaling(pair: Any, seed: int) -> None:
    K = KruskalTensor(*pair)
    rng = np.random.default_rng(seed)
    order = rng.permutation(K.rank)
    weights, factors = K.weights[order], [f[:, order] for f in K.factors]
    for k in range(K.order):
        turn = rng.choice([-2.0, 0.5], K.rank)
        factors[k] = factors[k] * turn
        weights = weights / turn
    moved = KruskalTensor(weights, factors)
    assert K.match_score(moved) == pytest.approx(1.0)
    assert K.allclose(moved)
    np.testing.assert_allclose(moved.normalize().to_dense(), K.to_dense(), atol=1e-12)


def test_match_score_against_pyttb() -> None:
    for seed in range(10):
        weights, factors = random_parts((4, 5, 6), 3, seed)
        weights = np.abs(weights)
        noise = [
            f + 0.05 * np.random.default_rng(seed + 50).standard_normal(f.shape) for f in factors
        ]
        peer = pyttb.ktensor(factors, weights).score(pyttb.ktensor(noise, weights))[0]
        ours = KruskalTensor(weights, factors).match_score(KruskalTensor(weights, noise))
        assert ours == pytest.approx(peer, abs=1e-10)


def test_match_score_of_other_ranks_and_opposite_terms() -> None:
    eye = np.eye(3)
    K = KruskalTensor([1.0, 1.0, 1.0], [eye] * 3)
    assert K.match_score(KruskalTensor(None, [eye[:, :2]] * 3)) == pytest.approx(2 / 3)
    assert K.match_score(KruskalTensor([-1.0] * 3, [eye] * 3)) == 0.0
    assert K.match_score(KruskalTensor([], [np.empty((3, 0))] * 3)) == 0.0
    nothing = KruskalTensor([0.0], [np.zeros((3, 1))] * 3)
    assert nothing.match_score(nothing) == 1.0
    assert K.match_score(KruskalTensor([2.0, 1.0, 1.0], [eye] * 3)) == pytest.approx(2.5 / 3)


def test_tensorly_rebuilds_the_same_tensor() -> None:
    K = KruskalTensor(*random_parts((3, 4, 5), 2, 0))
    np.testing.assert_allclose(tensorly.cp_to_tensor(K.to_tensorly()), K.to_dense())


@pytest.mark.parametrize("scale", [1e-200, 1e-90, 1e90, 1e150])
def test_norm_and_fit_neither_over_nor_underflow(scale: float) -> None:
    weights, factors = random_parts((3, 4), 2, 1)
    K = KruskalTensor(weights, [factors[0] * scale, factors[1]])
    unit = KruskalTensor(weights, factors)
    assert K.norm() == pytest.approx(unit.norm() * scale)
    assert K.fit(K.to_dense() * 1.1) == pytest.approx(unit.fit(unit.to_dense() * 1.1))


def test_fit_is_the_true_one_beyond_one_slab_and_for_float32() -> None:
    rng = np.random.default_rng(3)
    weights, factors = random_parts((300, 80, 90), 2, 2)
    X = plain_sum(weights, factors) + 1e-6 * rng.standard_normal((300, 80, 90))
    K = KruskalTensor(weights, factors)
    assert 1 - K.fit(X) == pytest.approx(1e-6 * np.sqrt(X.size) / np.linalg.norm(X), rel=1e-2)
    single = KruskalTensor(weights, [f.astype(np.float32) for f in factors])
    assert single.dtype == np.float64
    f32 = KruskalTensor(weights.astype(np.float32), [f.astype(np.float32) for f in factors])
    assert f32.dtype == f32.to_dense().dtype == np.float32
    # the float32 expansion of the square would call this an error of 0 or 1e-4
    assert 0 < 1 - f32.fit(X) < 1e-6 * 2


def test_fit_of_zero_tensors_is_defined() -> None:
    zero = np.zeros((2, 3))
    assert KruskalTensor([0.0], [np.ones((2, 1)), np.ones((3, 1))]).fit(zero) == 1.0
    assert KruskalTensor([1.0], [np.ones((2, 1)), np.ones((3, 1))]).fit(zero) == -np.inf


def test_other_libraries_stay_where_they_are() -> None:
    weights, factors = random_parts((3, 4, 2), 2, 5)
    strict = KruskalTensor(
        array_api_strict.asarray(weights), [array_api_strict.asarray(f) for f in factors]
    )
    K = KruskalTensor(weights, factors)
    assert strict.normalize().factors[0].__array_namespace__() is array_api_strict
    np.testing.assert_allclose(np.from_dlpack(strict.to_dense()), K.to_dense())
    np.testing.assert_allclose(
        np.from_dlpack(strict.normalize().factors[2]), K.normalize().factors[2]
    )
    assert strict.norm() == pytest.approx(K.norm())
    assert strict.match_score(strict.normalize()) == pytest.approx(1.0)
    assert strict.fit(strict.to_dense()) == 1.0
    assert KruskalTensor(None, strict.factors).rank == 2
    with pytest.raises(TypeError, match="librar"):
        strict.match_score(K)
    with pytest.raises(TypeError, match="librar"):
        KruskalTensor(strict.weights, factors)
    with pytest.raises(TypeError, match="librar"):
        strict.fit(K.to_dense())


def test_values_are_copied_and_read_only(tmp_path: Path) -> None:
    weights, factors = random_parts((3, 4, 2), 2, 6)
    K = KruskalTensor(weights, factors)
    factors[0][0, 0] = 99.0
    assert K.factors[0][0, 0] != 99.0
    with pytest.raises(ValueError, match="read-only"):
        K.factors[1][0, 0] = 1.0
    save(tmp_path / "k.npz", K)
    for other in (copy.deepcopy(K), pickle.loads(pickle.dumps(K)), load(tmp_path / "k.npz")):
        assert all(np.array_equal(a, b) for a, b in zip(K.factors, other.factors, strict=True))
        assert np.array_equal(K.weights, other.weights)
    assert repr(K) == "KruskalTensor(shape=(3, 4, 2), rank=2, dtype=float64)"


def test_many_modes_keep_their_order_in_a_file(tmp_path: Path) -> None:
    K = KruskalTensor([1.0], [np.full((k + 1, 1), k + 1.0) for k in range(12)])
    save(tmp_path / "k.npz", K)
    assert load(tmp_path / "k.npz").shape == K.shape
    arrays = dict(np.load(tmp_path / "k.npz"))
    del arrays["factors.3"]
    np.savez(tmp_path / "torn.npz", **arrays)
    with pytest.raises(PersistenceError, match=r"factors\.11|factors\.3"):
        load(tmp_path / "torn.npz")


@pytest.mark.parametrize(
    ("weights", "factors", "error", "message"),
    [
        ([1.0], [], ShapeError, "at least one"),
        ([1.0], [np.ones(3)], ShapeError, r"factors\[0\]"),
        ([1.0], [np.ones((3, 1)), np.ones((3, 2))], ShapeError, r"factors\[1\]"),
        ([1.0, 2.0], [np.ones((3, 1))], ShapeError, "weights"),
        ([np.nan], [np.ones((3, 1))], ValueError, "weights must be finite"),
        ([1.0], [np.full((3, 1), np.inf)], ValueError, r"factors\[0\] must be finite"),
        ([1j], [np.ones((3, 1))], ValueError, "weights has dtype complex128"),
        (["a"], [np.ones((3, 1))], ValueError, "weights has dtype"),
    ],
)
def test_bad_parts_are_named(weights: Any, factors: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        KruskalTensor(weights, factors)


def test_bad_partners_are_named() -> None:
    K = KruskalTensor([1.0], [np.ones((3, 1)), np.ones((2, 1))])
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        K.fit(np.ones((2, 3)))
    with pytest.raises(ValueError, match="finite"):
        K.fit(np.full((3, 2), np.nan))
    with pytest.raises(TypeError, match="KruskalTensor"):
        K.match_score(np.ones((3, 2)))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        K.match_score(KruskalTensor([1.0], [np.ones((3, 1))]))
