"""Products of the tree against explicit unfoldings, and how often it reads the tensor."""

from itertools import pairwise

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.gpu.namespaces import to_numpy
from tensoralg.gpu.sparse_tensor import SparseTensor
from tensoralg.gpu.tensor_blocks import TensorBlocks
from tensoralg.solvers import dimension_tree
from tensoralg.solvers.dimension_tree import DimensionTree, SparseProducts, group_modes


def explicit_product(tensor, factors, mode):
    """Unfolding times Khatri-Rao product, both written out."""
    rank = factors[0].shape[1]
    columns = []
    for s in range(rank):
        column = np.ones(1)
        for k, factor in enumerate(factors):
            if k != mode:
                column = np.kron(column, factor[:, s])
        columns.append(column)
    unfolding = np.moveaxis(tensor, mode, 0).reshape(tensor.shape[mode], -1)
    return unfolding @ np.array(columns).T


def make(shape, rank, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape), [rng.standard_normal((n, rank)) for n in shape]


SHAPES = [(3, 4), (3, 4, 5), (2, 1, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2), (2,) * 9]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sweeps", [3])
def test_cyclic_products_while_factors_change(shape, sweeps):
    tensor, factors = make(shape, 3)
    rng = np.random.default_rng(1)
    tree = DimensionTree(tensor, factors)
    for _ in range(sweeps):
        for mode in range(len(shape)):
            expected = explicit_product(tensor, factors, mode)
            np.testing.assert_allclose(tree.product(mode), expected, rtol=1e-10, atol=1e-10)
            factors[mode] = rng.standard_normal(factors[mode].shape)
            tree.replace(mode, factors[mode])


@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    calls=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12),
    cuts=st.integers(1, 15),
)
def test_any_order_of_calls_with_any_groups_is_right(shape, calls, cuts):
    tensor, factors = make(tuple(shape), 2)
    order = len(shape)
    starts = [0, *(k for k in range(1, order) if cuts >> (k - 1) & 1 or k == 1), order]
    groups = [tuple(range(a, b)) for a, b in pairwise(starts)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dimension_tree, "group_modes", lambda *arguments: groups)
        tree = DimensionTree(tensor, factors)
    for k, (mode, replace) in enumerate(calls):
        mode %= order
        expected = explicit_product(tensor, factors, mode)
        np.testing.assert_allclose(tree.product(mode), expected, rtol=1e-9, atol=1e-9)
        if replace:
            factors[mode] = factors[mode] + 0.1 * (k + 1)
            tree.replace(mode, factors[mode])


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_the_tensor_is_read_n_times_in_n_minus_one_sweeps(monkeypatch, order):
    tensor, factors = make((4,) * order, 2)
    count = []

    def counting(view, factor, mode, *, policy=None):
        count.append(mode)
        return contract(view, factor, mode, policy=policy)

    contract = dimension_tree.contract_mode
    monkeypatch.setattr(dimension_tree, "contract_mode", counting)
    singles = [(k,) for k in range(order)]
    monkeypatch.setattr(dimension_tree, "group_modes", lambda *arguments: singles)
    tree = DimensionTree(tensor, factors)
    for _ in range(2 * (order - 1)):
        for mode in range(order):
            tree.product(mode)
            tree.replace(mode, factors[mode])
    assert len(count) == 2 * order


def test_forgotten_products_see_changed_entries():
    tensor, factors = make((3, 4, 5), 2)
    tree = DimensionTree(tensor, factors)
    tree.product(0)
    tensor *= 2.0
    tree.forget()
    np.testing.assert_allclose(tree.product(0), explicit_product(tensor, factors, 0))


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 3, 4, 2)])
def test_another_array_library(shape):
    tensor, factors = make(shape, 2)
    tree = DimensionTree(strict.asarray(tensor), [strict.asarray(f) for f in factors])
    for mode in range(len(shape)):
        product = to_numpy(tree.product(mode))
        np.testing.assert_allclose(product, explicit_product(tensor, factors, mode), rtol=1e-12)
        factors[mode] = factors[mode] + 1.0
        tree.replace(mode, strict.asarray(factors[mode]))


@pytest.mark.parametrize("shape", [(7, 4), (7, 4, 5), (5, 2, 3, 2), (5, 2, 2, 2, 2, 2)])
@pytest.mark.parametrize("budget", [1, 500, 10**6])
def test_slabs_give_what_the_whole_array_gives(monkeypatch, shape, budget):
    monkeypatch.setattr(dimension_tree, "_SLAB_BYTES", budget)
    tensor, factors = make(shape, 3)
    tree = DimensionTree(TensorBlocks(tensor), factors)
    for mode in range(len(shape)):
        expected = explicit_product(tensor, factors, mode)
        np.testing.assert_allclose(tree.product(mode), expected, rtol=1e-9, atol=1e-9)
        factors[mode] = factors[mode] - 0.5
        tree.replace(mode, factors[mode])


@pytest.mark.parametrize("order", [2, 5, 8, 9, 16])
def test_groups_are_the_modes_in_order(order):
    for rank in (1, 8, 500):
        for n in (1, 2, 7):
            groups = group_modes((n,) * order, rank)
            assert [k for group in groups for k in group] == list(range(order))
            assert 2 <= len(groups) <= order
            assert all(groups)


def test_products_of_a_sparse_tensor():
    tensor, factors = make((4, 5, 6), 2)
    tensor[np.abs(tensor) < 1.0] = 0.0
    coordinates = np.array(np.nonzero(tensor))
    products = SparseProducts(
        SparseTensor(coordinates, tensor[tuple(coordinates)], tensor.shape), factors
    )
    for mode in range(3):
        expected = explicit_product(tensor, factors, mode)
        np.testing.assert_allclose(products.product(mode), expected, rtol=1e-10, atol=1e-12)
        factors[mode] = factors[mode] + 1.0
        products.replace(mode, factors[mode])


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (2, 3, 4, 5), (2,) * 9])
def test_fortran_order_is_read_where_it_lies(monkeypatch, shape):
    tensor, factors = make(shape, 2)
    tensor = np.asfortranarray(tensor)
    seen = []

    def watching(view, factor, mode, *, policy=None):
        seen.append(np.shares_memory(view, tensor))
        return contract(view, factor, mode, policy=policy)

    contract = dimension_tree.contract_mode
    monkeypatch.setattr(dimension_tree, "contract_mode", watching)
    tree = DimensionTree(tensor, factors)
    for mode in [*range(len(shape))] * 2:
        expected = explicit_product(tensor, factors, mode)
        np.testing.assert_allclose(tree.product(mode), expected, rtol=1e-10, atol=1e-10)
        factors[mode] = factors[mode] - 0.3
        tree.replace(mode, factors[mode])
    assert all(seen)


def test_any_other_layout_is_copied_once():
    tensor, factors = make((4, 5, 6), 2)
    swapped = np.swapaxes(tensor, 0, 1)
    factors[:2] = factors[1::-1]
    tree = DimensionTree(swapped, factors)
    for mode in range(3):
        expected = explicit_product(swapped, factors, mode)
        np.testing.assert_allclose(tree.product(mode), expected, rtol=1e-10)
