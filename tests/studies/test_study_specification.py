import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensoralg.studies import METHODS, SpecificationError, load_specification, parse_specification

GRID = {
    "dimension": [8],
    "components": [2, 3],
    "order": [3],
    "samples": [500, 1000],
    "separation": [0.5],
    "seeds": [0, 1, 2],
    "methods": ["moments", "em-truth"],
}


def study(**changes):
    return parse_specification({"name": "s", "grid": GRID | changes})


def test_every_list_is_crossed_with_every_other():
    cells = study().cells()
    assert len(cells) == len(set(cells)) == 2 * 2 * 3 * 2
    wanted = itertools.product([2, 3], [500, 1000], [0, 1, 2], ["moments", "em-truth"])
    assert {(c.components, c.samples, c.seed, c.method) for c in cells} == set(wanted)


def test_a_count_of_seeds_means_the_same_as_the_list():
    assert study(seeds=3).seeds == (0, 1, 2)
    assert not study(seeds=3).differences(study(seeds=[2, 0, 1]))


def test_integral_floats_are_integers():
    assert study(samples=[1e5]).samples == (100000,)
    assert isinstance(study(samples=[1e5]).samples[0], int)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dimension": []}, "dimension is an empty list"),
        ({"dimension": 8}, "dimension must be a list"),
        ({"dimension": ["8"]}, "dimension must hold integers; got '8'"),
        ({"dimension": [True]}, "dimension must hold integers"),
        ({"components": [0]}, "components must be at least 1; got 0"),
        ({"components": [2.5]}, "components must hold integers; got 2.5"),
        ({"order": [2]}, "order must be at least 3; got 2"),
        ({"samples": [-5]}, "samples must be at least 1; got -5"),
        ({"samples": [float("inf")]}, "samples must hold integers"),
        ({"separation": [-0.5]}, "separation must be finite and not negative"),
        ({"separation": [float("nan")]}, "separation must be finite"),
        ({"separation": ["far"]}, "separation must hold numbers"),
        ({"seeds": 0}, "seeds as a count must be at least 1"),
        ({"seeds": -3}, "seeds as a count must be at least 1"),
        ({"seeds": 2.0}, "seeds must be a list of integers or a count"),
        ({"seeds": [0, 0]}, "seeds holds 0 twice"),
        ({"seeds": [-1]}, "seeds must be at least 0"),
        ({"methods": []}, "methods is an empty list"),
        ({"methods": ["moments", "magic"]}, "unknown method 'magic'; accepted: moments"),
        ({"methods": [["moments"]]}, "unknown method"),
        ({"methods": "moments"}, "methods must be a list"),
        ({"seeds": 10**9}, "seeds as a count"),
        ({"seeds": 900_000}, "more than"),
        ({"outliers": 0.1}, "outliers must be a list"),
        ({"outliers": [1.0]}, "outliers must be shares, at least 0 and below 1; got 1.0"),
        ({"outliers": [0, 0.0]}, "outliers holds 0.0 twice"),
        ({"missing": [-0.1]}, "missing must be finite and not negative"),
        ({"missing": ["25%"]}, "missing must hold numbers"),
        ({"missing": []}, "missing is an empty list"),
        ({"uncertainty": True}, "unknown key 'uncertainty' at [grid]; it belongs at the top level"),
        ({"colour": [1]}, "unknown key 'colour' at [grid]; accepted: dimension"),
    ],
)
def test_a_bad_value_is_named_in_one_line(changes, words):
    with pytest.raises(SpecificationError) as caught:
        study(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", GRID)
def test_a_missing_key_is_named(key):
    grid = {k: v for k, v in GRID.items() if k != key}
    with pytest.raises(SpecificationError, match=f"missing key '{key}'"):
        parse_specification({"name": "s", "grid": grid})


@pytest.mark.parametrize("name", ["", "  ", 3, "two\nlines", None])
def test_a_name_is_one_line_of_text(name):
    with pytest.raises(SpecificationError, match="name"):
        parse_specification({"name": name, "grid": GRID})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "missing key 'name'"),
        ("name = ", "not valid TOML"),
        ('name = "s"\ngrid = 3', "grid must be a table"),
        ('name = "s"\nseeds = 3\n[grid]', "unknown key 'seeds' at the top level; it belongs in"),
        ('name = "s"\nname = "t"', "not valid TOML"),
        ('name = "s"\nuncertainty = 1\n[grid]', "uncertainty must be true or false; got 1"),
        ('name = "s"\nmissing = [0.1]\n[grid]', "unknown key 'missing' at the top level; it bel"),
        ("a = " + "[" * 3000 + "]" * 3000, "not valid TOML"),
    ],
)
def test_a_bad_text_is_named(text, words):
    with pytest.raises(SpecificationError) as caught:
        parse_specification(text)
    assert words in str(caught.value)


def test_files_with_a_byte_order_mark_and_without_utf8(tmp_path):
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf" + study().to_toml().encode())
    assert not load_specification(path).differences(study())
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(SpecificationError, match="UTF-8"):
        load_specification(path)


def test_the_source_is_kept_as_it_was_written():
    text = "# a comment\n\n" + study().to_toml()
    assert parse_specification(text).to_toml() == text


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": [500]},
        {"seeds": 4},
        {"methods": ["moments"]},
        {"separation": [0.25]},
        {"outliers": [0.1]},
        {"missing": [0, 0.1]},
    ],
)
def test_another_meaning_is_a_difference(changes):
    (difference,) = study().differences(study(**changes))
    assert next(iter(changes)) in difference


def test_what_is_not_named_means_clean_rows_and_no_intervals():
    explicit = study(outliers=[0], missing=[0.0])
    assert not study().differences(explicit)
    assert study().cells() == explicit.cells()
    assert not study().uncertainty
    assert "outliers" not in study().to_toml()


def test_shares_are_crossed_with_the_rest():
    cells = study(outliers=[0, 0.01], missing=[0.25]).cells()
    assert len(cells) == len(set(cells)) == 2 * len(study().cells())
    assert {(c.outliers, c.missing) for c in cells} == {(0.0, 0.25), (0.01, 0.25)}
    assert {c.clean() for c in cells} == set(study().cells())


def test_intervals_are_part_of_the_meaning():
    with_intervals = parse_specification({"name": "s", "uncertainty": True, "grid": GRID})
    assert study().differences(with_intervals) == ["uncertainty False is not True"]
    assert not parse_specification(with_intervals.to_toml()).differences(with_intervals)


whole = st.integers(1, 10**6)
share = st.floats(0, 1, exclude_max=True)


@given(
    name=st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1).filter(
        lambda text: text.strip() and text.isprintable()
    ),
    dimension=st.lists(whole, min_size=1, max_size=3, unique=True),
    separation=st.lists(st.floats(0, 1e300), min_size=1, max_size=3, unique=True),
    outliers=st.lists(share, min_size=1, max_size=2, unique=True),
    missing=st.lists(share, min_size=1, max_size=2, unique=True),
    seeds=st.lists(st.integers(0, 2**70), min_size=1, max_size=3, unique=True),
    methods=st.lists(st.sampled_from(list(METHODS)), min_size=1, unique=True),
)
def test_toml_written_and_read_means_the_same(name, **changes):
    given_study = parse_specification({"name": name, "grid": GRID | changes})
    again = parse_specification(given_study.to_toml())
    assert not again.differences(given_study)
    assert again.cells() == given_study.cells()
