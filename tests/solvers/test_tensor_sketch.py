import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.gpu.tensor_blocks import as_blocks
from tensoralg.solvers.tensor_sketch import tensor_sketch


def dense(factors):
    return khatri_rao(factors).sum(axis=1).reshape([len(f) for f in factors])


def random_factors(shape, rank, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(n, rank)) for n in shape]


def multiply(tensor, matrices):
    for mode, matrix in enumerate(matrices):
        tensor = np.moveaxis(np.tensordot(matrix, tensor, axes=(1, mode)), 0, mode)
    return tensor


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
def test_core_is_the_projection_on_orthonormal_bases(shape, seed, data):
    tensor = np.random.default_rng(seed).normal(size=shape)
    size = tensor.size
    ranks = [data.draw(st.integers(1, min(n, size // n))) for n in shape]
    sketch = tensor_sketch(tensor, ranks, rng=seed)
    for basis, n, d in zip(sketch.bases, shape, ranks, strict=True):
        assert basis.shape == (n, d)
        np.testing.assert_allclose(basis.T @ basis, np.eye(d), atol=1e-12)
    expected = multiply(tensor, [basis.T for basis in sketch.bases])
    np.testing.assert_allclose(sketch.core, expected, atol=1e-11)


@pytest.mark.parametrize(("shape", "rank"), [((20, 25, 30), 4), ((9, 8, 7, 10), 3), ((40, 30), 5)])
def test_low_rank_tensor_is_kept_exactly(shape, rank):
    tensor = dense(random_factors(shape, rank, 0))
    sketch = tensor_sketch(tensor, [rank] * len(shape), rng=1)
    back = multiply(sketch.core, sketch.bases)
    assert np.linalg.norm(back - tensor) < 1e-12 * np.linalg.norm(tensor)


def test_noisy_tensor_is_compressed_about_as_well_as_by_singular_vectors():
    shape, rank = (40, 50, 45), 6
    tensor = dense(random_factors(shape, rank, 0))
    noise = np.random.default_rng(1).normal(size=shape)
    tensor += 0.1 * np.linalg.norm(tensor) / np.linalg.norm(noise) * noise
    sketch = tensor_sketch(tensor.astype(np.float32), [rank] * 3, rng=2)
    bases = []
    for mode, n in enumerate(shape):
        rows = np.moveaxis(tensor, mode, 0).reshape(n, -1)
        bases.append(np.linalg.svd(rows, full_matrices=False)[0][:, :rank])
    best = np.linalg.norm(multiply(tensor, [basis.T for basis in bases]))
    assert np.linalg.norm(sketch.core) > (1 - 1e-5) * best


def test_kept_columns_lie_in_the_bases():
    shape = (20, 18, 16)
    tensor = np.random.default_rng(0).normal(size=shape)
    kept = random_factors(shape, 3, 1)
    sketch = tensor_sketch(tensor, (7, 6, 5), rng=2, containing=kept)
    for basis, columns in zip(sketch.bases, kept, strict=True):
        np.testing.assert_allclose(basis @ (basis.T @ columns), columns, atol=1e-12)
    np.testing.assert_allclose(
        sketch.core, multiply(tensor, [basis.T for basis in sketch.bases]), atol=1e-11
    )
    expanded = sketch.expand([basis.T @ c for basis, c in zip(sketch.bases, kept, strict=True)])
    np.testing.assert_allclose(expanded[0], kept[0], atol=1e-12)


def test_tensor_read_by_slabs_gives_the_same_core():
    tensor = np.random.default_rng(0).normal(size=(30, 12, 14))
    whole = tensor_sketch(tensor, (5, 4, 6), rng=1)
    slabs = tensor_sketch(as_blocks(tensor), (5, 4, 6), rng=1)
    np.testing.assert_allclose(whole.core, slabs.core, atol=1e-10)


def test_zero_tensor_has_a_zero_core():
    sketch = tensor_sketch(np.zeros((6, 5, 4)), (2, 2, 2), rng=0)
    assert not sketch.core.any()
    assert all(np.isfinite(basis).all() for basis in sketch.bases)


@pytest.mark.parametrize("shape", [(25, 30, 5), (5, 30, 25), (12, 5, 20, 4), (40, 5, 4)])
def test_a_mode_that_does_not_shrink_may_lie_anywhere(shape):
    tensor = dense(random_factors(shape, 4, 0))
    for given_tensor in (tensor, as_blocks(tensor)):
        sketch = tensor_sketch(given_tensor, [4] * len(shape), rng=1)
        back = multiply(sketch.core, sketch.bases)
        assert np.linalg.norm(back - tensor) < 1e-12 * np.linalg.norm(tensor)
