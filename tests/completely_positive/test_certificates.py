"""Exact certificates: known tensors outside the cone, tampering, soundness, stand-alone check."""

import json
import pickle
import random
import subprocess
import sys
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensoralg.completely_positive import detect
from tensoralg.completely_positive.certificates import (
    Certificate,
    bernstein_certificate,
    faces_certificate,
    gram_certificate,
    hoelder_certificate,
    means_certificate,
    negative_entry_certificate,
    zero_pattern_certificate,
)
from tensoralg.solvers.certificate_proofs import (
    FacesProof,
    GramBlock,
    GramProof,
    MeansProof,
    SubdivisionProof,
)
from tensoralg.solvers.exact_certificates import _checksum
from tensoralg.solvers.moment_matrices import dehomogenize
from tensoralg.solvers.moment_relaxation import build_relaxation
from tensoralg.solvers.rational_forms import exact_form, monomials, multiplicity, pairing
from tensoralg.solvers.rational_matrices import is_positive_semidefinite
from tensoralg.solvers.uniform_shift import solve_shift

VERIFIER = Path(__file__).parents[2] / "docs" / "verify_certificate.py"
F = Fraction


def by_distinct(n, d, values):
    return [values[len(set(a)) - 1] for a in monomials(n, d)]


def matrix(rows):
    return [rows[i][j] for i, j in monomials(len(rows), 2)]


def path_closed(c):
    return matrix(
        [[1, 1, 0, 0, 1], [1, 2, 1, 0, 0], [0, 1, 2, 1, 0], [0, 0, 1, 2, 1], [1, 0, 0, 1, c]]
    )


def circulant(*row):
    return [list(np.roll(row, i)) for i in range(len(row))]


DISTINCT = (F(1), F(3, 10), F(7, 20))
HORN = np.array(circulant(1, -1, 1, 1, -1))
# just outside: the Horn matrix pairs to -1/2
BEYOND_HORN = np.array(circulant(8, 5, 1, 1, 5), dtype=object)
BEYOND_HORN[0, 0] -= F(1, 2)

# entries, n, d, k, and the shift where the literature of the method knows it
OUTSIDE = {
    "n=3 d=3": (by_distinct(3, 3, DISTINCT), 3, 3, 2, 2 / 7),
    "n=4 d=3": (by_distinct(4, 3, DISTINCT), 4, 3, 2, 15 / 58),
    "n=5 d=3": (by_distinct(5, 3, DISTINCT), 5, 3, 2, 21 / 88),
    "n=6 d=3": (by_distinct(6, 3, DISTINCT), 6, 3, 2, None),
    "n=2 d=3": ([F(1), F(1, 2), F(1, 2), F(3, 10)], 2, 3, 2, 12 / 43),
    "n=3 d=4": (by_distinct(3, 4, (1, 0.3, 0.35)), 3, 4, 3, None),
    "n=4 d=4": (by_distinct(4, 4, (1, 0.3, 0.3, 0.4)), 4, 4, 2, None),
    "weakly infeasible": ([1, 0, 0, 0, F(1, 5), 0, 1, 0, 0, 1], 3, 3, 2, 20 / 7),
    "B(3)": (path_closed(3), 5, 2, 2, 0.13632),
    "B(6)": (path_closed(6), 5, 2, 2, None),
    "beyond Horn": (matrix(BEYOND_HORN), 5, 2, 2, None),
}


@cache
def multipliers(name):
    entries, n, d, k, _ = OUTSIDE[name]
    mass = sum(multiplicity(a) * x for a, x in exact_form(entries, n, d).items())
    scaled = np.array([float(F(x) / mass) for x in entries])
    return solve_shift(build_relaxation(dehomogenize(scaled, n, d), n - 1, d, k))


@cache
def gram(name):
    entries, n, d, k, _ = OUTSIDE[name]
    shift = multipliers(name)
    factors = [block.factors for block in shift.relaxation.blocks]
    return gram_certificate(entries, n, d, k, shift.multipliers, factors)


def separating_form(name):
    """The form before the room for rounding was made: take E^d off again."""
    certificate = gram(name)
    n, d = certificate.dimension, certificate.order
    mass = sum(multiplicity(a) * x for a, x in certificate.tensor.items())
    slack = -certificate.value / mass
    return [float(certificate.form.get(a, 0) - slack * multiplicity(a)) for a in monomials(n, d)]


def horn_faces(c):
    """The closed path's comparison matrix: (v_i x_i - v_j x_j)^2 on the edges."""
    M = np.diag([1.0, 2, 2, 2, c]) + circulant(0, 1, 0, 0, 1)
    v = np.abs(np.linalg.eigh(2 * np.diag(np.diag(M)) - M)[1][:, 0])
    form = [(v[i] ** 2 if i == j else -2 * v[i] * v[j]) for i, j in monomials(5, 2)]
    return faces_certificate(path_closed(c), 5, 2, form, [(i, (i + 1) % 5) for i in range(5)])


def examples():
    return {
        "negative entry": negative_entry_certificate([1, F(-1, 3), 2], 2, 2),
        "zero pattern": zero_pattern_certificate([1, 0, 0, 0, 0.2, 0, 1, 0, 0, 1], 3, 3),
        "Hoelder": hoelder_certificate([1, 2, 3, F(1, 2)], 2, 3),
        "gram": gram("n=3 d=3"),
        "bernstein": bernstein_certificate(path_closed(3), 5, 2, separating_form("B(3)")),
        "faces": horn_faces(3),
    }


KINDS = ["negative entry", "zero pattern", "Hoelder", "gram", "bernstein", "faces"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_multipliers_of_known_tensors_round_to_certificates(name):
    entries, n, d, _, shift = OUTSIDE[name]
    certificate = gram(name)
    assert certificate.verify()
    assert certificate.certifies(exact_form(entries, n, d))
    assert certificate.value < 0
    if shift is not None:
        assert multipliers(name).t == pytest.approx(shift, abs=5e-6)


def test_homogeneous_multipliers_round_as_well():
    entries, n, d, k, _ = OUTSIDE["n=3 d=3"]
    mass = sum(multiplicity(a) * x for a, x in exact_form(entries, n, d).items())
    known = dehomogenize(np.array([float(x / mass) for x in entries]), n, d)
    shift = solve_shift(build_relaxation(known, n - 1, d, k, homogeneous=True))
    factors = [block.factors for block in shift.relaxation.blocks]
    assert gram_certificate(entries, n, d, k, shift.multipliers, factors).verify()


def test_multipliers_without_products_gain_them_in_the_proof():
    entries, n, d, k, _ = OUTSIDE["n=3 d=3"]
    mass = sum(multiplicity(a) * x for a, x in exact_form(entries, n, d).items())
    known = dehomogenize(np.array([float(x / mass) for x in entries]), n, d)
    shift = solve_shift(build_relaxation(known, n - 1, d, k, products=False))
    factors = [block.factors for block in shift.relaxation.blocks]
    assert gram_certificate(entries, n, d, k, shift.multipliers, factors).verify()


@pytest.mark.parametrize("scale", [F(1, 10**8), F(10) ** 8])
def test_scaling_the_tensor_scales_the_value_alone(scale):
    entries, n, d, k, _ = OUTSIDE["n=3 d=3"]
    shift = multipliers("n=3 d=3")
    factors = [block.factors for block in shift.relaxation.blocks]
    scaled = gram_certificate([scale * x for x in entries], n, d, k, shift.multipliers, factors)
    assert scaled.verify()
    assert scaled.value == scale * gram("n=3 d=3").value


@pytest.mark.parametrize("scale", [1e-200, 1e-6, 1e3, 1e200])
def test_scaling_the_multipliers_scales_the_value_alone(scale):
    square = scale * np.array([[1.0, -2.0], [-2.0, 4.0]])
    certificate = gram_certificate([1, 2, 1], 2, 2, 1, [square], [()])
    assert certificate.verify()
    # the square pairs to -3; room for rounding takes half or nine tenths of it
    assert -3 < certificate.value / F(scale) < F(-1, 4)
    assert bernstein_certificate([2, 3, 2], 2, 2, [scale, -2 * scale, scale]).verify()


def test_no_certificate_for_a_tensor_in_the_cone():
    shift = multipliers("n=3 d=3")
    factors = [block.factors for block in shift.relaxation.blocks]
    inside = by_distinct(3, 3, (F(3), F(1), F(1)))  # ones + 2 sum of unit cubes
    assert gram_certificate(inside, 3, 3, 2, shift.multipliers, factors) is None
    form = separating_form("n=3 d=3")
    assert bernstein_certificate(inside, 3, 3, form) is None
    assert negative_entry_certificate(inside, 3, 3) is None
    assert zero_pattern_certificate(inside, 3, 3) is None
    assert hoelder_certificate(inside, 3, 3) is None


@pytest.mark.parametrize("name", ["n=3 d=3", "n=2 d=3", "n=3 d=4", "B(3)", "B(6)", "beyond Horn"])
def test_subdivision_proves_the_same_forms(name):
    entries, n, d, _, _ = OUTSIDE[name]
    certificate = bernstein_certificate(entries, n, d, separating_form(name))
    assert certificate.verify()
    assert certificate.certifies(exact_form(entries, n, d))


def test_a_form_that_is_negative_somewhere_has_no_subdivision():
    entries, n, d, _, _ = OUTSIDE["B(3)"]
    assert bernstein_certificate(entries, n, d, [-1.0] * 15) is None
    assert bernstein_certificate([4, 4, 4], 2, 2, [1, -4, 1], max_leaves=50) is None


@pytest.mark.parametrize("c", [3, 6, F(699, 100)])
def test_positive_faces_and_large_coefficients_elsewhere(c):
    certificate = horn_faces(float(c))
    assert certificate.verify()
    assert certificate.kind == "faces"
    assert max(certificate.form.values()) > 1000


def test_faces_that_leave_a_set_uncovered_prove_nothing():
    certificate = horn_faces(3)
    proof = certificate.proof
    fewer = FacesProof(proof.margin, proof.threshold, proof.faces[:-1])
    changed = Certificate("faces", 5, 2, certificate.tensor, certificate.form, fewer)
    assert not changed.verify()


def test_zero_patterns_and_means_of_the_literature():
    # Fan, Zhou: A_112 = 3 while A_122 = 0
    first = zero_pattern_certificate([5, 3, 0, 7], 2, 3)
    assert first.verify()
    assert first.value < 0
    horn = hoelder_certificate([1, 2, 1], 2, 2)
    assert horn.verify()
    assert horn.value == -1
    half = F(1, 2)
    log_convex = means_certificate(
        [1, 2, 3, 1], 2, 3, (0, 0, 1), {(0, 0, 0): half, (0, 1, 1): half}
    )
    assert log_convex.verify()
    assert (
        means_certificate([1, 1, 3, 1], 2, 3, (0, 0, 1), {(0, 0, 0): half, (0, 1, 1): half}) is None
    )
    # a boundary of the order of rounding: no float decides
    assert hoelder_certificate([1, F(10**12 + 1, 10**12), 1], 2, 2).verify()
    assert hoelder_certificate([F(1, 9), F(1, 3), 1], 2, 2) is None


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind):
    certificate = examples()[kind]
    assert certificate.kind == kind
    again = Certificate.from_json(certificate.to_json())
    assert again.verify()
    assert again.value == certificate.value
    assert again.to_json() == certificate.to_json()
    assert pickle.loads(pickle.dumps(certificate)).verify()


def numbers(node, path=()):
    """Paths of all numbers of a JSON value: integers and strings "p/q"."""
    if isinstance(node, dict):
        return [
            p
            for key, child in node.items()
            if key != "sha256"
            for p in numbers(child, (*path, key))
        ]
    if isinstance(node, list):
        return [p for i, child in enumerate(node) for p in numbers(child, (*path, i))]
    is_number = isinstance(node, int) or (isinstance(node, str) and node[-1:].isdigit())
    return [path] if is_number else []


def changed_at(data, path, rng):
    copy = json.loads(json.dumps(data))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    old = parent[path[-1]]
    if isinstance(old, int):
        parent[path[-1]] = old + rng.choice([-1, 1])
    else:
        parent[path[-1]] = str(F(old) + rng.choice([F(1, 2**40), F(-1), F(1, 3)]))
    return copy


def verdict(data):
    try:
        return Certificate.from_json(json.dumps(data)).verify()
    except ValueError:
        return False


@pytest.mark.parametrize("kind", KINDS)
def test_any_changed_number_is_noticed(kind):
    data = json.loads(examples()[kind].to_json())
    rng = random.Random(5)
    paths = numbers(data)
    assert verdict(data)
    for path in rng.sample(paths, min(len(paths), 60)):
        assert not verdict(changed_at(data, path, rng)), path


@pytest.mark.parametrize("kind", KINDS)
def test_a_forger_who_signs_again_proves_nothing_false(kind):
    data = json.loads(examples()[kind].to_json())
    del data["sha256"]
    rng = random.Random(7)
    paths = numbers(data)
    points = np.random.default_rng(3).dirichlet([0.5] * data["dimension"], 200)
    broken = 0
    for path in rng.sample(paths, min(len(paths), 60)):
        forged = changed_at(data, path, rng)
        forged["sha256"] = _checksum(forged)
        try:
            forged_certificate = Certificate.from_json(json.dumps(forged))
        except ValueError:
            broken += 1
            continue
        if forged_certificate.verify():
            # then it proves what it says; in an identity no number has any play
            assert kind != "gram" or path[0] in {"tensor", "value"}
            form = forged_certificate.form
            assert pairing(form, forged_certificate.tensor) < 0
            values = sum(float(c) * points[:, list(a)].prod(axis=1) for a, c in form.items())
            assert values.min() >= -1e-12
        else:
            broken += 1
    assert broken > 0


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"format": "tensoralg certificate: not completely positive", "version": 2}',
        '{"format": "tensoralg certificate: not completely positive", "version": 1}',
    ],
)
def test_foreign_text_is_refused(text):
    with pytest.raises(ValueError, match=r"format|version|damaged"):
        Certificate.from_json(text)


@pytest.mark.parametrize("value", ["1/0", "0.5", "1e9", "nan", 1.5, None, "1 /2"])
def test_numbers_that_are_no_fractions_are_refused(value):
    data = json.loads(examples()["Hoelder"].to_json())
    data["form"][0][1] = value
    data["sha256"] = _checksum({k: v for k, v in data.items() if k != "sha256"})
    with pytest.raises(ValueError, match="p/q"):
        Certificate.from_json(json.dumps(data))


def stand_alone(text, path):
    path.write_text(text)
    run = subprocess.run(
        [sys.executable, "-I", "-S", str(VERIFIER), str(path)], capture_output=True, text=True
    )
    return run.returncode, run.stdout.split()[-1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_stand_alone_verifier_agrees(kind, tmp_path):
    data = json.loads(examples()[kind].to_json())
    assert stand_alone(json.dumps(data), tmp_path / "good.json") == (0, "VALID")
    rng = random.Random(11)
    for path in rng.sample(numbers(data), 2):
        forged = changed_at(data, path, rng)
        assert stand_alone(json.dumps(forged), tmp_path / "bad.json") == (1, "INVALID")
        # signed again, it is judged by the mathematics alone, as by the package
        del forged["sha256"]
        forged["sha256"] = _checksum(forged)
        code, _ = stand_alone(json.dumps(forged), tmp_path / "bad.json")
        assert code == (not verdict(forged))


def test_the_polynomial_is_the_form():
    certificate = gram("n=3 d=3")
    polynomial = certificate.polynomial()
    assert [str(x) for x in polynomial.gens] == ["x_1", "x_2", "x_3"]
    assert polynomial.is_homogeneous
    assert polynomial.total_degree() == 3
    assert (
        F(int(polynomial.coeff_monomial((2, 1, 0)).p), int(polynomial.coeff_monomial((2, 1, 0)).q))
        == (certificate.form[0, 0, 1])
    )


def test_unsound_proofs_are_rejected():
    one = F(1)
    tensor = exact_form([0, 1, 0], 2, 2)
    form = {(0, 0): one, (0, 1): -3 * one, (1, 1): one}  # negative at (1, 1)
    corner, other = (0, 0), (1, 1)
    half, quarter = F(1, 2), F(1, 4)
    proofs = [
        MeansProof(((corner, half), (other, half))),
        MeansProof(((corner, quarter), (corner, quarter), (other, quarter), (other, quarter))),
        SubdivisionProof(()),
        SubdivisionProof((None,)),
        SubdivisionProof(((0, 0), None, None)),
        SubdivisionProof(((0, 1), None)),
        GramProof(2, (GramBlock((), 1, (one, F(-3, 2), one)),)),
        GramProof(2, (GramBlock((), 1, (one,)),)),
        GramProof(2, ()),
        GramProof(2, (GramBlock((0, 1), 0, (F(-3),)), GramBlock((), 1, (one, F(0), one)))),
        FacesProof(quarter, quarter, ()),
        FacesProof(quarter, quarter, (((0, 1), SubdivisionProof((None,))),)),
        FacesProof(F(-9), quarter, (((0, 1), SubdivisionProof((None,))),)),
    ]
    for proof in proofs:
        assert not Certificate("gram", 2, 2, tensor, form, proof).verify()


def test_malformed_terms_are_refused():
    proof = SubdivisionProof((None,))
    for index in [(1, 0), (0,), (0, 2), (-1, 0)]:
        with pytest.raises(ValueError, match="sorted multi-indices of length 2"):
            Certificate("negative entry", 2, 2, {index: F(1)}, {(0, 0): F(1)}, proof)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([1, 2], "must hold 3 numbers"),
        ([1, float("nan"), 1], "finite"),
        ([1, float("inf"), 1], "finite"),
    ],
)
def test_bad_entries_are_refused(entries, message):
    for make in (negative_entry_certificate, zero_pattern_certificate, hoelder_certificate):
        with pytest.raises(ValueError, match=message):
            make(entries, 2, 2)


def test_bad_multipliers_are_refused():
    with pytest.raises(ValueError, match="must be square of size 2"):
        gram_certificate([1, 2, 1], 2, 2, 1, [np.eye(5)], [()])
    with pytest.raises(ValueError, match="constraints must be"):
        gram_certificate([1, 2, 1], 2, 2, 1, [np.eye(1)], [(0, 0)])
    with pytest.raises(ValueError, match="relaxation_order must be at least 2"):
        gram_certificate([1, 2, 1, 1], 2, 3, 1, [], [])
    assert gram_certificate([1, 2, 1], 2, 2, 1, [[[np.nan, 0], [0, 1]]], [()]) is None


def test_numpy_numbers_stay_exact():
    entries = np.array([3, 2**62, 3], dtype=np.int64)
    certificate = hoelder_certificate(entries, 2, 2)
    assert certificate.tensor[0, 1] == 2**62
    assert all(type(c.numerator) is int for c in certificate.tensor.values())
    assert Certificate.from_json(certificate.to_json()).verify()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_semidefiniteness_agrees_with_minors(seed, size):
    rng = np.random.default_rng(seed)
    factor = rng.integers(-3, 4, (size, int(rng.integers(1, size + 1))))
    exact = factor @ factor.T
    assert is_positive_semidefinite(exact.astype(object).tolist())
    below = [[F(int(x)) for x in row] for row in exact]
    below[-1][-1] -= F(1, 10**30)
    kernel = int(np.linalg.matrix_rank(np.delete(factor, -1, 0))) == np.linalg.matrix_rank(factor)
    # the last row depends on the others: any decrease leaves the cone
    assert is_positive_semidefinite(below) == (not kernel)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(2, 2), (3, 2), (2, 3), (3, 3), (4, 3), (3, 4)]))
def test_no_elementary_certificate_for_sums_of_powers(seed, shape):
    n, d = shape
    rng = np.random.default_rng(seed)
    atoms = rng.integers(0, 4, (int(rng.integers(1, 6)), n)) * rng.integers(0, 2, n)
    entries = [sum(int(np.prod(u[list(a)])) for u in atoms) for a in monomials(n, d)]
    for make in (negative_entry_certificate, zero_pattern_certificate, hoelder_certificate):
        assert make(entries, n, d) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(2, 2, 1), (3, 2, 1), (3, 3, 2), (2, 4, 2)]))
def test_no_multipliers_whatever_certify_sums_of_powers(seed, shape):
    n, d, k = shape
    rng = np.random.default_rng(seed)
    atoms = rng.integers(0, 4, (4, n))
    atoms[0] += 1
    entries = [sum(int(np.prod(u[list(a)])) for u in atoms) for a in monomials(n, d)]
    blocks = build_relaxation(np.zeros(len(entries)), n - 1, d, k).blocks
    factors = [block.factors for block in blocks]
    noise = [rng.standard_normal(2 * (block.change.shape[1],)) for block in blocks]
    squares = [Q @ Q.T for Q in noise]
    for multipliers_ in (noise, squares, [-Q for Q in squares]):
        assert gram_certificate(entries, n, d, k, multipliers_, factors) is None


@pytest.mark.parametrize("scale", [F(10) ** 400, F(1, 10**400), F(5, 2**1074)])
def test_entries_beyond_the_range_of_floats(scale):
    above = [scale * x for x in (1, 2, 1)]
    assert hoelder_certificate(above, 2, 2).value == -scale
    assert zero_pattern_certificate([scale, 0, scale, scale], 2, 3).verify()
    assert negative_entry_certificate([-scale], 1, 2).verify()


def test_a_certificate_and_a_detection_are_short_in_print_and_no_bools() -> None:
    found = detect([[1, 2], [2, 1]])
    assert repr(found.certificate).startswith("Certificate(kind='")
    assert len(repr(found.certificate)) < 100
    with pytest.raises(TypeError, match="never a bool"):
        bool(found)
