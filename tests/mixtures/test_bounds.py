from itertools import product
from math import comb

import pytest

from tensoralg.mixtures.bounds import component_bound, counting_bound, variance_bound
from tensoralg.solvers.coordinate_splits import feasible_splits

FORMS = ("homogeneous", "affine", "power")

# (d, m): papers (arXiv:2401.01337), affine, power
TABLE = {
    (6, 4): (1, 4, 4),
    (8, 4): (3, 5, 6),
    (15, 3): (6, 8, 8),
    (15, 4): (8, 11, 11),
    (8, 5): (3, 7, 10),
    (12, 5): (10, 16, 21),
    (10, 6): (4, 15, 21),
    (20, 5): (36, 46, 55),
}


def room(d, m, p, k, form):
    """Written out from the formulas, apart from the code under test."""
    if form == "homogeneous":
        return min(comb(k, p), comb(d - k - 2, m - p - 1) if d - k - 2 >= 0 else 0)
    if form == "affine":
        left = sum(comb(k, q) for q in range(p + 1))
        return min(left, sum(comb(d - k - 1, q) for q in range(m - p)))
    return min(comb(k + p, p), comb(d - k - 1 + m - p - 1, m - p - 1))


@pytest.mark.parametrize("case", TABLE)
def test_published_table(case):
    assert tuple(component_bound(*case, form=form) for form in FORMS) == TABLE[case]


def test_default_form_is_affine():
    assert component_bound(15, 3) == 8


@pytest.mark.parametrize("form", FORMS)
def test_bound_against_all_splits(form):
    for d, m in product(range(1, 22), range(3, 8)):
        rooms = {(p, k): room(d, m, p, k, form) for p in range(1, m - 1) for k in range(d)}
        assert component_bound(d, m, form=form) == max(rooms.values())


@pytest.mark.parametrize("form", FORMS)
def test_feasible_splits_are_all_and_roomiest_first(form):
    for d, m, rank in product((4, 9, 12), (3, 4, 6), (1, 3, 5)):
        rooms = {(p, k): room(d, m, p, k, form) for p in range(1, m - 1) for k in range(d)}
        splits = feasible_splits(d, m, rank, form)
        assert sorted(splits) == sorted(split for split in rooms if rooms[split] >= rank)
        found = [rooms[split] for split in splits]
        assert found == sorted(found, reverse=True)


def test_order_three_homogeneous_is_half_the_dimension():
    for d in range(4, 40):
        assert component_bound(d, 3, form="homogeneous") == d // 2 - 1


def test_smallest_dimensions():
    for m in range(3, 8):
        assert component_bound(1, m) == component_bound(1, m, form="power") == 1
        assert component_bound(1, m, form="homogeneous") == 0
    assert [counting_bound(d, 3) for d in (1, 2, 3)] == [1, 1, 2]


def test_counting_and_variance_bounds():
    # method notes: beyond the algebraic bounds (8, 3) with 6 and (8, 4) with 9 are identifiable
    assert counting_bound(8, 3) == (1 + 8 + 28 + 56) // 9
    assert counting_bound(8, 4) >= 9
    assert variance_bound(15, 3) == 15
    assert variance_bound(8, 4) == 1 + 7 + 21
    for d, m in product(range(1, 12), range(3, 7)):
        assert variance_bound(d, m) >= 1


def test_bounds_grow_with_dimension_and_order():
    for form in FORMS:
        for d, m in product(range(2, 20), range(3, 7)):
            bound = component_bound(d, m, form=form)
            assert bound <= component_bound(d + 1, m, form=form)
            # the homogeneous form needs the full degree in both blocks, so it may lose by order
            assert form == "homogeneous" or bound <= component_bound(d, m + 1, form=form)


@pytest.mark.parametrize("function", [component_bound, counting_bound, variance_bound])
def test_bad_arguments_are_named(function):
    with pytest.raises(ValueError, match=r"order .*>= 3.* 2"):
        function(5, 2)
    with pytest.raises(ValueError, match=r"dimension .*>= 1.* 0"):
        function(0, 3)
    with pytest.raises(ValueError, match=r"dimension .*2\.5"):
        function(2.5, 3)


def test_unknown_form_and_rank_are_named():
    with pytest.raises(ValueError, match="'affin'"):
        component_bound(5, 3, form="affin")
    with pytest.raises(ValueError, match=r"rank .* 0"):
        feasible_splits(5, 3, 0, "affine")
