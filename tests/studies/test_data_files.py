import sys

import numpy as np
import pytest

from tensoralg.studies.data_files import DataFileError, read_table

PLAIN = [[1.5, -2.0], [3.0, 4e3]]


def read(tmp_path, content, name="data.csv", columns=None):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(path, columns)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("a,b\n1.5,-2\n3,4e3\n", ("a", "b")),
        ("1.5,-2\n3,4e3\n", ("x1", "x2")),
        ("a;b\n1.5;-2\n3;4e3\n", ("a", "b")),
        ("a;b\n1,5;-2,0\n3;4000,0\n", ("a", "b")),
        ("a\tb\n1.5\t-2\n3\t4e3\n", ("a", "b")),
        ("a b\n1.5   -2\n  3 4e3\n", ("a", "b")),
        ("1.5 -2\n3 4e3", ("x1", "x2")),
        ("a, b\r\n1.5, -2\r\n3, 4e3\r\n", ("a", "b")),
        ("\ufeffa,b\n1.5,-2\n3,4e3\n", ("a", "b")),
        ("\n\na,b\n\n1.5,-2\n\n3,4e3\n\n\n", ("a", "b")),
        ('"a, long","b"\n"1.5","-2"\n"3","4e3"\n', ("a, long", "b")),
        ("# made by hand\na,b\n1.5,-2\n3,4e3\n", ("a", "b")),
        ("# a b\n1.5 -2\n3 4e3\n", ("a", "b")),
        ("# 2026\n1.5 -2\n3 4e3\n", ("x1", "x2")),
        ("höhe,größe\n1.5,-2\n3,4e3\n", ("höhe", "größe")),
        ("1,b\n1.5,-2\n3,4e3\n", ("1", "b")),
        ("a,b\n1.5,-2\n,\n3,4e3\n", ("a", "b")),
        (",a,b\n0,1.5,-2\n1,3,4e3\n", ("a", "b")),
        ("a,\n1.5,-2\n3,4e3\n", ("a", "x2")),
    ],
)
def test_many_ways_of_writing_the_same_table(tmp_path, content, names):
    table = read(tmp_path, content)
    np.testing.assert_array_equal(table.values, PLAIN)
    assert table.columns == names
    assert table.values.dtype == np.float64
    assert table.first_missing() is None


def test_utf16_as_spreadsheets_write_it(tmp_path):
    table = read(tmp_path, "a\tb\n1.5\t-2\n3\t4e3\n".encode("utf-16"))
    np.testing.assert_array_equal(table.values, PLAIN)


def test_one_column_with_and_without_a_header(tmp_path):
    for content in ("height\n1\n2\n", "1\n2\n", '"1"\n\n2'):
        assert read(tmp_path, content).values.tolist() == [[1.0], [2.0]]
    assert read(tmp_path, "total height\n1\n2\n").columns == ("total height",)


@pytest.mark.parametrize("cell", ["", "NA", "nan", "NaN", "null", "?", " n/a "])
def test_missing_values_are_found_by_row_and_column(tmp_path, cell):
    table = read(tmp_path, f"a,b\n1,2\n3,{cell}\n5,6\n")
    assert np.isnan(table.values[1, 1])
    assert table.first_missing() == (2, "b")


def test_infinity_is_not_a_value(tmp_path):
    table = read(tmp_path, "a,b\n1,2\ninf,3\n")
    assert (table.first_missing(), table.first_infinite()) == (None, (2, "a"))


def test_the_row_index_of_a_data_frame_is_left_out_and_said(tmp_path):
    table = read(tmp_path, ",a,b\n0,1.5,-2\n1,3,4e3\n")
    assert "counts the rows" in table.notes[0]
    assert read(tmp_path, ",a\n0,5\n3,6\n").columns == ("x1", "a")


def test_columns_are_selected_in_the_order_asked(tmp_path):
    content = "a,kind,b\n1,one,2\n3,two,4\n"
    table = read(tmp_path, content, columns=["b", "a"])
    assert table.columns == ("b", "a")
    assert table.values.tolist() == [[2, 1], [4, 3]]


@pytest.mark.parametrize(
    ("content", "columns", "words"),
    [
        ("a,kind\n1,one\n2,two\n", None, "line 2, column 'kind': 'one' is not a number"),
        ("1,one\n2,two\n", None, "line 1, column 'x2': 'one' is not a number"),
        ("a,b\n1,2\n\n3,oops\n", None, "line 4, column 'b': 'oops' is not a number"),
        ("# remark\n\na,b\n1,2\n3,oops\n", None, "line 5, column 'b'"),
        ("a,b\n1,2\n3,1_000\n", None, "'1_000' is not a number"),
        ("a;b\n1,5;2,5\n1.5;3\n", None, "not a number"),
        ("a,b\n1,2\n3\n", None, "line 3: 1 fields where 2 are expected"),
        ("a,b\n1,2\n3,4,5\n", None, "line 3: 3 fields where 2 are expected"),
        ("a,b\n1,2\n3,4,5\n", ["a"], "line 3: 3 fields"),
        ("a,b\n", None, "no rows of numbers"),
        ("", None, "no rows of numbers"),
        ("\n \n", None, "no rows of numbers"),
        ("a,b\n1,2\n", ["c"], "column 'c' is not there; the columns are: a, b"),
        ("a,a\n1,2\n", ["a"], "there or asked for twice"),
        ("a,b\n1,2\n", ["a", "a"], "asked for twice"),
        (b"a,b\n1,\xff\n", None, "not UTF-8"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, content, columns, words):
    with pytest.raises(DataFileError) as caught:
        read(tmp_path, content, columns=columns)
    assert words in str(caught.value)
    assert "data.csv" in str(caught.value)


def test_fast_and_careful_reading_agree(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.standard_normal((300, 5)) * 10.0 ** rng.integers(-200, 200, (300, 5))
    text = "\n".join(",".join(map(repr, row)) for row in values.tolist())
    fast = read(tmp_path, text)
    careful = read(tmp_path, text, columns=["x1", "x2", "x3", "x4", "x5"])
    np.testing.assert_array_equal(fast.values, values)
    np.testing.assert_array_equal(careful.values, values)


def test_npy(tmp_path):
    path = tmp_path / "data.npy"
    for dtype, wanted in ((np.float32, np.float32), (np.int16, np.float64), (bool, np.float64)):
        np.save(path, np.eye(3, dtype=dtype))
        table = read_table(path)
        assert table.values.dtype == wanted
        assert table.columns == ("x1", "x2", "x3")
    assert read_table(path, ["x3"]).values.tolist() == [[0], [0], [1]]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(5), r"2-D, got shape \(5,\); reshape"),
        (np.zeros((2, 2, 2)), "2-D"),
        (np.zeros((2, 2), complex), "complex128 is not accepted"),
        (np.array([["a"]]), "not accepted"),
        (np.array([[None]]), "not a readable .npy"),
        (np.zeros((0, 3)), "no rows"),
    ],
)
def test_npy_that_is_no_table(tmp_path, array, words):
    np.save(tmp_path / "data.npy", array)
    with pytest.raises(DataFileError, match=words):
        read_table(tmp_path / "data.npy")


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"not this format at all", b"\x93NUMPY\x01\x00"])
def test_damaged_binary_files(tmp_path, suffix, content):
    with pytest.raises(DataFileError, match="not a readable"):
        read(tmp_path, content, f"data{suffix}")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "a": pyarrow.array([1, None, 3]),
        "b": pyarrow.array([1.5, 2.5, None]),
        "c": pyarrow.array([True, False, True]),
        "kind": pyarrow.array(["x", "y", "z"]),
    }
    path = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    table = read_table(path, ["c", "a", "b"])
    np.testing.assert_array_equal(table.values, [[1, 1, 1.5], [0, np.nan, 2.5], [1, 3, np.nan]])
    assert table.first_missing() == (2, "a")
    with pytest.raises(DataFileError, match="'kind' is of type string"):
        read_table(path)
    with pytest.raises(DataFileError, match="'nope' is not there"):
        read_table(path, ["nope"])
    single = pyarrow.table({"a": pyarrow.array([1, 2], pyarrow.float32())})
    parquet.write_table(single, path)
    assert read_table(path).values.dtype == np.float32


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataFileError, match=r"tensoralg\[parquet\]"):
        read(tmp_path, b"PAR1", "data.parquet")


def test_an_unknown_kind_of_file(tmp_path):
    for name in ("data.xlsx", "data"):
        with pytest.raises(DataFileError, match="unknown kind of file"):
            read(tmp_path, b"", name)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        read_table(tmp_path / "folder.csv")
