"""Contractions and MTTKRP of dense tensors against einsum, in every layout and engine."""

import os
import subprocess
import sys

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.core.kruskal_products import khatri_rao
from tensoralg.errors import ShapeError
from tensoralg.gpu import mode_contraction, register_tiles
from tensoralg.gpu.mode_contraction import contract_mode, contract_partial
from tensoralg.gpu.mttkrp import mttkrp
from tensoralg.gpu.precision import PRECISIONS, precision_policy, round_operand
from tensoralg.gpu.register_tiles import contract_in_tiles, sum_in_tiles
from tensoralg.gpu.sparse_tensor import SparseTensor

LETTERS = "abcdefgh"


def reference(tensor, factors, mode):
    """MTTKRP by einsum in float64."""
    order = tensor.ndim
    others = [k for k in range(order) if k != mode]
    inputs = ",".join([LETTERS[:order], *(LETTERS[k] + "z" for k in others)])
    operands = [np.asarray(tensor, np.float64), *(np.float64(factors[k]) for k in others)]
    return np.einsum(f"{inputs}->{LETTERS[mode]}z", *operands, optimize=True)


def problem(shape, rank, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    tensor = rng.standard_normal(shape).astype(dtype)
    return tensor, [rng.standard_normal((n, rank)).astype(dtype) for n in shape]


def assert_close(result, expected, dtype):
    assert result.dtype == dtype
    assert result.flags.c_contiguous
    scale = np.abs(expected).max(initial=1e-30)
    tolerance = {np.dtype(np.float32): 3e-5, np.dtype(np.float64): 1e-12}[np.dtype(dtype)]
    np.testing.assert_allclose(result / scale, expected / scale, rtol=0, atol=tolerance)


# compiled tiles: ranks of one to several vectors and chunks, sizes that leave remainders


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ((100, 10, 1), 3),
        ((9, 7, 1), 17),
        ((50, 33, 1), 30),
        ((1, 50, 700), 10),
        ((5, 20, 50), 20),
        ((2, 300, 1200), 30),
        ((2, 40, 17), 5),
        ((1, 9, 16), 1),
    ],
)
def test_compiled_contractions_equal_einsum(shape, rank, dtype):
    stack, (_, factor, _) = problem(shape, rank, dtype)
    result = contract_in_tiles(stack, factor)
    expected = np.einsum("lnr,ns->lrs", stack.astype(float), factor.astype(float))
    assert result is not None
    assert_close(result, expected, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "rank"),
    [((100, 10, 1), 3), ((9, 7, 1), 17), ((3, 300, 12), 30), ((7, 11, 4), 100), ((40, 3, 1), 70)],
)
def test_compiled_sums_equal_einsum(shape, rank, dtype):
    stack, (_, factor, _, _) = problem((*shape, rank), rank, dtype)
    result = sum_in_tiles(stack, factor)
    expected = np.einsum("lnrs,ns->lrs", stack.astype(float), factor.astype(float))
    assert result is not None
    assert_close(result, expected, dtype)


def test_shapes_without_a_kernel_are_declined():
    assert contract_in_tiles(np.ones((2, 3, 1)), np.ones((3, 2))) is None
    assert contract_in_tiles(np.ones((50, 3, 1)), np.ones((3, 500))) is None
    assert contract_in_tiles(np.ones((50, 3, 2)), np.ones((3, 2))) is None
    assert sum_in_tiles(np.ones((2, 3, 1, 4)), np.ones((3, 4))) is None
    assert sum_in_tiles(np.ones((2, 3, 2, 4)), np.ones((3, 4))) is None


def test_read_only_and_mapped_arrays_need_no_versions_of_their_own(tmp_path):
    from tensoralg.gpu.mttkrp_kernels import contract_inner, contract_last, contract_sums

    tensor, factors = problem((40, 50, 60), 6)
    np.save(tmp_path / "tensor.npy", tensor)
    mapped = np.load(tmp_path / "tensor.npy", mmap_mode="r")
    expected = [mttkrp(tensor, factors, mode) for mode in range(3)]
    kernels = (contract_inner, contract_last, contract_sums)
    versions = [len(kernel.signatures) for kernel in kernels]
    tensor.flags.writeable = False
    for factor in factors:
        factor.flags.writeable = False
    for source in (tensor, mapped):
        for mode in range(3):
            np.testing.assert_array_equal(mttkrp(source, factors, mode), expected[mode])
    assert [len(kernel.signatures) for kernel in kernels] == versions


def test_several_threads_give_the_same_numbers(monkeypatch):
    monkeypatch.setattr(register_tiles, "_PRODUCTS", 1000)
    monkeypatch.setattr(mode_contraction, "_FEW_SUMS", 0)
    tensor, factors = problem((37, 50, 90), 6)
    results = []
    for threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        assert register_tiles.thread_count() == int(threads)
        results.append([contract_mode(tensor, factors[k], k) for k in range(3)])
        results[-1].append(contract_partial(results[-1][2], factors[1], 1))
        results[-1].append(contract_partial(results[-1][2], factors[0], 0))
    for one, three in zip(*results, strict=True):
        np.testing.assert_array_equal(one, three)


# the public functions


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.integers(1, 4),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from(["C", "F", "strided"]),
    st.booleans(),
)
def test_mttkrp_equals_einsum_for_every_mode(shape, rank, dtype, layout, compiled):
    tensor, factors = problem(shape, rank, dtype)
    if layout == "F":
        tensor = np.asfortranarray(tensor)
    elif layout == "strided":
        tensor = np.repeat(tensor, 2, axis=-1)[..., ::2]
    before = mode_contraction._FEW_PRODUCTS
    mode_contraction._FEW_PRODUCTS = 0 if compiled else before
    try:
        for mode in range(len(shape)):
            result = mttkrp(tensor, factors, mode)
            assert_close(result, reference(tensor, factors, mode), dtype)
    finally:
        mode_contraction._FEW_PRODUCTS = before


@pytest.mark.parametrize(
    ("shape", "rank"), [((60, 50, 40), 10), ((300, 3, 200), 7), ((20, 30, 12, 25), 9)]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_larger_tensors_equal_einsum(shape, rank, order):
    tensor, factors = problem(shape, rank, np.float32)
    tensor = np.asarray(tensor, order=order)
    for mode in range(len(shape)):
        assert_close(mttkrp(tensor, factors, mode), reference(tensor, factors, mode), np.float32)


def test_partial_products_of_all_axes_equal_einsum():
    tensor, factors = problem((4, 5, 6), 3)
    for mode in range(3):
        partial = contract_mode(tensor, factors[mode], mode)
        expected = np.moveaxis(np.tensordot(tensor, factors[mode], (mode, 0)), -1, -1)
        assert_close(partial, expected, np.float64)
        rest = [k for k in range(3) if k != mode]
        for axis, other in ((0, rest[1]), (1, rest[0])):
            result = contract_partial(partial, factors[rest[axis]], axis)
            assert_close(result, reference(tensor, factors, other), np.float64)


def test_factors_follow_the_dtype_of_the_tensor():
    tensor, factors = problem((7, 8, 9), 2, np.float32)
    doubles = [factor.astype(np.float64) for factor in factors]
    assert_close(mttkrp(tensor, doubles, 1), reference(tensor, factors, 1), np.float32)


def test_a_tall_tensor_does_not_blow_up():
    # contracting the last mode alone would take ten times the tensor
    shape = (3000, 3, 3)
    tensor, factors = problem(shape, 30)
    from tracemalloc import get_traced_memory, start, stop

    mttkrp(tensor, factors, 0)
    start()
    result = mttkrp(tensor, factors, 0)
    peak = get_traced_memory()[1]
    stop()
    assert_close(result, reference(tensor, factors, 0), np.float64)
    assert peak < result.nbytes + 1.5 * tensor.nbytes


def test_khatri_rao_varies_the_first_index_slowest():
    left, right = np.arange(6.0).reshape(3, 2), np.arange(8.0).reshape(4, 2)
    expected = np.stack([np.kron(left[:, s], right[:, s]) for s in range(2)], axis=1)
    np.testing.assert_array_equal(khatri_rao([left, right]), expected)


def test_arrays_of_another_library_stay_there():
    tensor, factors = problem((4, 5, 3, 2), 3)
    for mode in range(4):
        result = mttkrp(strict.asarray(tensor), [strict.asarray(f) for f in factors], mode)
        assert isinstance(result, type(strict.asarray(tensor)))
        np.testing.assert_allclose(np.asarray(result), reference(tensor, factors, mode))


def test_sparse_tensors_go_to_their_own_kernels():
    tensor, factors = problem((4, 5, 3), 2)
    tensor[np.abs(tensor) < 0.7] = 0.0
    sparse = SparseTensor(np.array(np.nonzero(tensor)), tensor[np.nonzero(tensor)], tensor.shape)
    for mode in range(3):
        np.testing.assert_allclose(
            mttkrp(sparse, factors, mode), reference(tensor, factors, mode), atol=1e-12
        )
    with pytest.raises(ValueError, match="policy"):
        mttkrp(sparse, factors, 0, policy=precision_policy("bfloat16"))


# low precision


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("library", [np, strict])
def test_policies_multiply_rounded_operands(name, mode, library):
    tensor, factors = problem((6, 7, 20), 3)
    tensor[0, 0, 0] = 40.0
    policy = precision_policy(name)
    rounded = round_operand(tensor, policy, axis=mode)
    factor = round_operand(factors[mode], policy, axis=0)
    expected = np.tensordot(rounded.astype(float), factor.astype(float), (mode, 0))
    result = contract_mode(
        library.asarray(tensor), library.asarray(factors[mode]), mode, policy=policy
    )
    result = np.asarray(result)
    assert result.dtype == (np.float64 if name == "float64" else np.float32)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-4)
    if name not in ("float64", "float32"):
        exact = np.tensordot(tensor, factors[mode], (mode, 0))
        assert np.abs(result - exact).max() > 1e-4


def test_stochastic_policies_follow_the_seed():
    tensor, factors = problem((6, 7, 20), 3)
    policy = precision_policy("bfloat16", rounding="stochastic")
    first, again, other = (mttkrp(tensor, factors, 1, policy=policy, rng=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


# errors and imports


def test_what_does_not_fit_is_refused():
    tensor, factors = problem((4, 5, 3), 2)
    with pytest.raises(ShapeError, match="factors"):
        mttkrp(tensor, factors[::-1], 0)
    with pytest.raises(ShapeError, match="factors"):
        mttkrp(tensor, [f[:, 0] for f in factors], 0)
    with pytest.raises(ShapeError, match="two modes"):
        mttkrp(np.ones(3), [np.ones((3, 1))], 0)
    with pytest.raises(ValueError, match="mode"):
        mttkrp(tensor, factors, 3)
    with pytest.raises(ShapeError, match="mode 1"):
        contract_mode(tensor, factors[0], 1)
    with pytest.raises(ShapeError, match="axis 0"):
        contract_partial(np.ones((4, 5, 2)), factors[1], 0)


def test_numba_is_not_loaded_before_it_pays():
    code = (
        "import sys, numpy as np; from tensoralg.gpu.mttkrp import mttkrp\n"
        "mttkrp(np.ones((3, 4, 5)), [np.ones((n, 2)) for n in (3, 4, 5)], 1)\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))
