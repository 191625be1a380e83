"""Foreign texts as certificates: no hang, no other exception, and both readers agree."""

import importlib.util
import json
from fractions import Fraction
from pathlib import Path

import pytest

from tensoralg.completely_positive import Certificate
from tensoralg.solvers.certificate_proofs import FacesProof, GramBlock, GramProof, SubdivisionProof
from tensoralg.solvers.exact_certificates import _checksum

FILE = Path(__file__).parents[2] / "docs" / "verify_certificate.py"
SPEC = importlib.util.spec_from_file_location("stand_alone_verifier", FILE)
assert SPEC is not None
assert SPEC.loader is not None
VERIFIER = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(VERIFIER)

ONE = Fraction(1)
LEAF = {"method": "subdivision", "splits": [None]}


def text_of(**changes):
    """A signed certificate for [[0, -1], [-1, 0]], with changes."""
    proof = {"method": "gram", "degree": 2, "blocks": [block()]}
    data = {
        "format": "tensoralg certificate: not completely positive",
        "version": 1,
        "kind": "negative entry",
        "dimension": 2,
        "order": 2,
        "tensor": [[[0, 1], "-1"]],
        "form": [[[0, 1], "1"]],
        "value": "-1",
        "proof": proof,
        **changes,
    }
    data = {key: value for key, value in data.items() if value is not ...}
    return json.dumps({**data, "sha256": _checksum(data)})


def block(factor=(0, 1), degree=0, gram=("1",)):
    return {"factor": list(factor), "degree": degree, "gram": list(gram)}


def faces(variables, proof=LEAF, margin="1/100", threshold="1/10000"):
    listed = [{"variables": list(variables), "proof": proof}]
    return {"method": "faces", "margin": margin, "threshold": threshold, "faces": listed}


def nested(depth):
    proof = LEAF
    for _ in range(depth):
        proof = faces([0, 1], proof)
    return proof


def verdicts(text):
    try:
        ours = Certificate.from_json(text).verify()
    except ValueError:
        ours = False
    try:
        alone = VERIFIER.valid(json.loads(text))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        alone = False
    return bool(ours), bool(alone)


def test_the_text_that_is_changed_below_is_valid():
    assert verdicts(text_of()) == (True, True)
    assert verdicts(text_of(proof=LEAF)) == (True, True)
    reversed_factor = {"method": "gram", "degree": 2, "blocks": [block((1, 0))]}
    assert verdicts(text_of(proof=reversed_factor)) == (True, True)


NUMBERS = ["-0.1e1", "1e999999999", "-1 ", "-1_0", "-\u0661", "--1", -1, -1.0, True, "-1/0", None]


@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_only_fractions_are_numbers(number):
    assert verdicts(text_of(tensor=[[[0, 1], number]])) == (False, False)
    assert verdicts(text_of(value=number)) == (False, False)
    assert verdicts(text_of(proof=faces([0, 1], margin=number))) == (False, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "another"},
        {"format": ...},
        {"version": 2},
        {"version": ...},
        {"kind": ...},
        {"dimension": 2.0},
        {"dimension": True},
        {"dimension": 10**6},
        {"order": True},
        {"order": 0, "form": [[[], "1"]], "tensor": [[[], "-1"]], "proof": LEAF},
        {"form": [[[1, 0], "1"]]},
        {"form": [[[0.0, 1.0], "1"]]},
        {"form": [[[False, True], "1"]]},
        {"form": [[[0, 1], "1"], [[0, 1], "1"]]},
        {"tensor": [[[0, 1], "-1"], [[0, 1], "-1"]]},
        {"tensor": {"a": 1}},
        {"proof": {"method": "subdivision", "splits": [[]]}},
        {"proof": {"method": "subdivision", "splits": [False]}},
        {"proof": {"method": "subdivision", "splits": [[False, True], None, None]}},
        {"proof": {"method": "subdivision", "splits": [[0, -1], None, None]}},
        {"proof": {"method": "gram", "degree": 2.0, "blocks": [block()]}},
        {"proof": {"method": "gram", "degree": 2, "blocks": [block(degree=False)]}},
        {"proof": {"method": "gram", "degree": 2, "blocks": [block(degree=1000)]}},
        {"proof": nested(5)},
        {"proof": nested(200)},
    ],
    ids=str,
)
def test_both_readers_refuse_what_is_not_written_as_we_write_it(changes):
    assert verdicts(text_of(**changes)) == (False, False)


def test_both_readers_accept_an_empty_face():
    proof = faces([0, 1], {"method": "subdivision", "splits": [None]}, margin="1/4")
    form = [[[0, 0], "1"], [[0, 1], "1"], [[1, 1], "1"]]
    for empty in (LEAF, {"method": "gram", "degree": 0, "blocks": []}):
        more = {**proof, "faces": [*proof["faces"], {"variables": [], "proof": empty}]}
        assert verdicts(text_of(form=form, proof=more)) == (True, True)


@pytest.mark.parametrize(
    "changes",
    [
        {"proof": {"method": "gram", "degree": 1000, "blocks": [block()]}},
        {"dimension": 60, "proof": {"method": "gram", "degree": 12, "blocks": [block()]}},
        {"dimension": 1000, "proof": faces(range(1000))},
        {"dimension": 1000, "order": 1000, "form": [[[0] * 1000, "1"]],
         "tensor": [[[0] * 1000, "-1"]], "proof": {"method": "subdivision", "splits": [None]}},
    ],
    ids=["degree", "terms", "faces", "order"],
)  # fmt: skip
def test_texts_that_ask_for_hours_of_work_are_not_believed(changes):
    assert verdicts(text_of(**changes)) == (False, False)


def test_a_root_of_an_enormous_degree_is_not_taken():
    small = Fraction(1, 10**30 + 1)
    left = (1 - 2 * small) / 4
    weights = [[[0] * 4, str(left)], [[0, 0, 1, 1], str(small)], [[1] * 4, str(1 - left - small)]]
    form = [[[0] * 4, "1"], [[0, 0, 1, 1], "1"], [[0, 1, 1, 1], "-1"], [[1] * 4, "1"]]
    text = text_of(
        order=4,
        form=form,
        tensor=[[[0, 1, 1, 1], "1"]],
        proof={"method": "means", "weights": weights},
    )
    assert verdicts(text) == (False, False)


def test_a_text_nested_without_end_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        Certificate.from_json("[" * 100_000 + "]" * 100_000)


def test_many_variables_that_fit_a_few_faces_are_covered_at_once():
    n = 40
    halves = [tuple(range(n - 1)), tuple(range(1, n))]
    form = {(i, i): ONE for i in range(n)} | {(0, 1): Fraction(-1, 10), (0, n - 1): Fraction(10**9)}
    gram = {(i, i): ONE for i in range(n - 1)} | {(0, 1): Fraction(-1, 20)}
    margin = Fraction(1, 1000)

    def proof(first):
        entries = [
            gram.get((i, j), Fraction(0)) if first else Fraction(int(i == j))
            for i in range(n - 1)
            for j in range(i, n - 1)
        ]
        return GramProof(2, (GramBlock((), 1, tuple(c - margin for c in entries)),))

    pieces = tuple(zip(halves, (proof(True), proof(False)), strict=True))
    assert FacesProof(margin, Fraction(1, 10**5), pieces).holds(form, n)
    assert not FacesProof(margin, Fraction(1, 10**5), pieces[:1]).holds(form, n)


def test_without_faces_every_variable_needs_its_own_monomial():
    form = {(0, 0): ONE, (1, 1): ONE}
    assert FacesProof(ONE / 100, ONE / 10, ()).holds({**form, (0, 1): ONE}, 2)
    assert not FacesProof(ONE / 100, ONE / 10, ()).holds({(0, 0): ONE, (0, 1): -ONE / 10}, 2)
    assert SubdivisionProof((None,)).holds({}, 0)


@pytest.mark.parametrize("scales", [["1"], ["1", "1", "1"], ["1", "0"], ["-1", "-1"], 5, [1, 1]])
def test_scales_are_positive_and_one_for_each_variable(scales):
    assert verdicts(text_of(proof={"method": "scaled", "scales": scales, "proof": LEAF})) == (
        False,
        False,
    )
    good = {"method": "scaled", "scales": ["3", "1/7"], "proof": LEAF}
    assert verdicts(text_of(proof=good)) == (True, True)
