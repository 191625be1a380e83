import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.solvers.polyadic_gradient import residual_gradient
from tensoralg.solvers.polyadic_least_squares import polyadic_least_squares
from tensoralg.solvers.polyadic_normal_equations import (
    conjugate_gradients,
    curvature_gradient,
    gauss_newton_product,
    gram_products,
)
from tensoralg.solvers.polyadic_residual import balanced_split, relative_residual


def dense(factors):
    return khatri_rao(factors).sum(axis=1).reshape([len(f) for f in factors])


def random_factors(shape, rank, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, rank)) for n in shape]


def collinear_factors(shape, rank, collinearity, seed):
    rng = np.random.default_rng(seed)
    gram = np.full((rank, rank), collinearity) + (1 - collinearity) * np.eye(rank)
    root = np.linalg.cholesky(gram).T
    return [np.linalg.qr(rng.normal(size=(n, rank)))[0] @ root for n in shape]


def jacobian(factors):
    """Dense derivative of the model by all entries of the factors, column by column."""
    columns = []
    for mode, factor in enumerate(factors):
        for i in range(factor.shape[0]):
            for s in range(factor.shape[1]):
                parts = [f[:, s : s + 1] for f in factors]
                unit = np.zeros((factor.shape[0], 1))
                unit[i] = 1.0
                parts[mode] = unit
                columns.append(dense(parts).ravel())
    return np.array(columns).T


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    rank=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    masked=st.booleans(),
    low=st.booleans(),
)
def test_gradient_is_that_of_the_dense_jacobian(shape, rank, seed, masked, low):
    rng = np.random.default_rng(seed)
    factors = random_factors(shape, rank, seed)
    tensor = rng.normal(size=shape).astype(np.float32 if low else np.float64)
    mask = rng.random(shape) < 0.7 if masked else None
    difference = dense(factors) - tensor
    if masked:
        difference = np.where(mask, difference, 0.0)
        tensor = np.where(mask, tensor, np.nan)
    value, gradients = residual_gradient(tensor, factors, mask=mask)
    expected = jacobian(factors).T @ difference.ravel()
    found = np.concatenate([g.ravel() for g in gradients])
    assert value == pytest.approx(0.5 * np.sum(difference**2), rel=1e-12)
    tolerance = (1e-5 if low else 1e-12) * (1 + np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_gradient_of_a_tensor_of_many_tiles():
    shape = (150, 40, 70)
    factors = random_factors(shape, 3, 0)
    tensor = np.random.default_rng(1).normal(size=shape)
    value, gradients = residual_gradient(tensor, factors)
    difference = dense(factors) - tensor
    assert value == pytest.approx(0.5 * np.sum(difference**2), rel=1e-12)
    for mode, letters in enumerate(("ijk,js,ks->is", "ijk,is,ks->js", "ijk,is,js->ks")):
        others = [f for k, f in enumerate(factors) if k != mode]
        expected = np.einsum(letters, difference, *others, optimize=True)
        np.testing.assert_allclose(gradients[mode], expected, rtol=1e-10, atol=1e-9)


class Slabs:
    """A tensor that shows only slabs of its first mode."""

    def __init__(self, tensor, rows):
        self.tensor, self.rows = tensor, rows
        self.shape, self.ndim, self.dtype = tensor.shape, tensor.ndim, tensor.dtype

    def slabs(self, max_bytes):
        for start in range(0, self.shape[0], self.rows):
            stop = min(start + self.rows, self.shape[0])
            yield start, stop, self.tensor[start:stop]


@pytest.mark.parametrize("shape", [(7, 5, 6), (3, 4, 2, 5)])
def test_gradient_by_slabs(shape):
    factors = random_factors(shape, 2, 0)
    tensor = np.random.default_rng(1).normal(size=shape)
    value, gradients = residual_gradient(Slabs(tensor, 2), factors)
    expected_value, expected = residual_gradient(tensor, factors)
    assert value == pytest.approx(expected_value, rel=1e-13)
    for found, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_balanced_split_keeps_a_long_mode_alone():
    assert balanced_split((438, 6, 11)) == 1
    assert balanced_split((3, 4, 500)) == 2


@settings(max_examples=20, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    rank=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_normal_equations_are_those_of_the_dense_jacobian(shape, rank, seed):
    factors = random_factors(shape, rank, seed)
    flat = np.concatenate(factors)
    offsets = np.concatenate([[0], np.cumsum(shape)]).astype(np.int64)
    but_one, but_two = gram_products(flat, offsets)
    rng = np.random.default_rng(seed + 1)
    ridge = rng.uniform(0.5, 2.0, size=(len(shape), rank))
    derivative = jacobian(factors)
    normal = derivative.T @ derivative + np.diag(np.repeat(ridge, shape, axis=0).ravel())

    direction = rng.normal(size=flat.shape)
    product = np.empty_like(flat)
    gauss_newton_product(direction, flat, offsets, but_one, but_two, ridge, product)
    np.testing.assert_allclose(
        product.ravel(), normal @ direction.ravel(), rtol=1e-10, atol=1e-9 * np.abs(normal).max()
    )

    gradient = rng.normal(size=flat.shape)
    inverses = np.linalg.inv(but_one + ridge[:, :, None] * np.eye(rank))
    step, predicted, _ = conjugate_gradients(
        gradient, flat, offsets, but_one, but_two, ridge, inverses, 1000, 1e-12
    )
    expected = -np.linalg.solve(normal, gradient.ravel())
    np.testing.assert_allclose(
        step.ravel(), expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max()
    )
    image = derivative @ expected
    decrease = -(gradient.ravel() @ expected + 0.5 * image @ image)
    assert predicted == pytest.approx(decrease, rel=1e-6, abs=1e-10)


@settings(max_examples=20, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    rank=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_curvature_is_that_of_the_dense_model(shape, rank, seed):
    factors = random_factors(shape, rank, seed)
    steps = random_factors(shape, rank, seed + 1)
    flat, step = np.concatenate(factors), np.concatenate(steps)
    offsets = np.concatenate([[0], np.cumsum(shape)]).astype(np.int64)
    _, but_two = gram_products(flat, offsets)
    second = np.zeros(shape)
    for n in range(len(shape)):
        for m in range(n + 1, len(shape)):
            mixed = [steps[k] if k in (n, m) else factors[k] for k in range(len(shape))]
            second += 2 * dense(mixed)
    expected = jacobian(factors).T @ second.ravel()
    found = np.empty_like(flat)
    curvature_gradient(step, flat, offsets, but_two, found)
    np.testing.assert_allclose(
        found.ravel(), expected, rtol=1e-10, atol=1e-10 * (1 + np.abs(expected).max())
    )


@pytest.mark.parametrize(
    ("shape", "rank"),
    [((14, 13, 12), 10), ((8, 8, 8), 10), ((6, 5, 4, 3), 4), ((4, 3, 2, 3, 4), 3), ((5, 1, 6), 1)],
)
def test_exact_tensors_end_at_machine_precision(shape, rank):
    tensor = dense(random_factors(shape, rank, 0))
    found = polyadic_least_squares(tensor, random_factors(shape, rank, 5), max_iter=500)
    assert found.status == "converged"
    assert 1 - found.fit < 1e-14
    assert relative_residual(tensor, found.factors) < 1e-14
    assert len(found.history) == found.n_iter
    assert np.all(np.diff(found.history) >= 0)


def test_swamp_is_crossed_to_machine_precision():
    shape = (14, 14, 14)
    truth = collinear_factors(shape, 10, 0.95, 0)
    found = polyadic_least_squares(dense(truth), random_factors(shape, 10, 1), max_iter=300)
    assert 1 - found.fit < 1e-14
    product = np.ones((10, 10))
    for a, b in zip(truth, found.factors, strict=True):
        product *= np.abs((a / np.linalg.norm(a, axis=0)).T @ (b / np.linalg.norm(b, axis=0)))
    np.testing.assert_allclose(product.max(axis=1), 1.0, atol=1e-9)


def test_converged_means_stationary():
    shape = (9, 8, 7)
    tensor = dense(random_factors(shape, 3, 0)) + np.random.default_rng(1).normal(size=shape)
    found = polyadic_least_squares(tensor, random_factors(shape, 3, 2), tol=1e-13, max_iter=500)
    assert found.status == "converged"
    value, gradients = residual_gradient(tensor, list(found.factors))
    scale = np.linalg.norm(found.factors[0]) * 2 * value
    assert max(np.abs(g).max() for g in gradients) < 1e-5 * scale
    norms = [np.linalg.norm(f, axis=0) for f in found.factors]
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-10)


def test_two_terms_for_a_rank_one_tensor():
    tensor = dense(random_factors((3, 2, 4), 1, 0))
    found = polyadic_least_squares(tensor, random_factors((3, 2, 4), 2, 1))
    assert found.status == "converged"
    assert 1 - found.fit < 1e-12


def test_weights_of_six_orders_of_magnitude():
    shape, weights = (12, 12, 12), 10.0 ** -np.arange(7)
    truth = [f / np.linalg.norm(f, axis=0) for f in random_factors(shape, 7, 0)]
    truth[0] = truth[0] * weights
    rng = np.random.default_rng(1)
    start = [f * (1 + 0.1 * rng.normal(size=f.shape)) for f in truth]
    found = polyadic_least_squares(dense(truth), start, max_iter=500)
    assert 1 - found.fit < 1e-13


def test_matrix_reaches_its_truncated_singular_values():
    matrix = np.random.default_rng(0).normal(size=(12, 9))
    found = polyadic_least_squares(matrix, random_factors((12, 9), 3, 1), tol=1e-12, max_iter=500)
    values = np.linalg.svd(matrix, compute_uv=False)
    best = 1 - np.sqrt(np.sum(values[3:] ** 2) / np.sum(values**2))
    assert found.fit == pytest.approx(best, abs=1e-9)


def test_missing_cells_are_not_read():
    shape = (10, 9, 8)
    tensor = dense(random_factors(shape, 3, 0))
    mask = np.random.default_rng(1).random(shape) < 0.8
    holed = np.where(mask, tensor, np.nan)
    found = polyadic_least_squares(holed, random_factors(shape, 3, 2), mask=mask, max_iter=500)
    assert 1 - found.fit < 1e-7
    assert relative_residual(tensor, found.factors) < 1e-6


def test_zero_tensor_and_callback_and_limits():
    start = random_factors((3, 4, 5), 2, 0)
    zero = polyadic_least_squares(np.zeros((3, 4, 5)), start)
    assert zero.status == "converged"
    assert zero.fit == 1.0
    assert all(not f.any() for f in zero.factors)
    tensor = np.random.default_rng(1).normal(size=(3, 4, 5))
    assert polyadic_least_squares(tensor, start, max_iter=1).status == "max_iter"
    seen = []
    stopped = polyadic_least_squares(
        tensor, start, tol=0.0, callback=lambda k, fit, factors: seen.append(fit) or k == 3
    )
    assert stopped.status == "stopped"
    assert stopped.n_iter == len(seen) == 3
    assert stopped.history.tolist() == seen


def test_float32_tensor_is_fitted_to_its_own_rounding():
    shape = (15, 14, 13)
    tensor = dense(random_factors(shape, 4, 0)).astype(np.float32)
    found = polyadic_least_squares(tensor, random_factors(shape, 4, 1))
    assert found.fit == pytest.approx(1 - relative_residual(tensor, found.factors), abs=1e-13)
    assert 1 - found.fit < 1e-7
