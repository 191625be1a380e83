import json
import math
from dataclasses import asdict, replace

import pytest

from tensoralg.studies import (
    CellKey,
    CellResult,
    CellStore,
    StudyFolderError,
    StudySpecification,
    parse_specification,
    read_cells,
    read_study,
)
from tensoralg.studies.intervals import IntervalCounts

STUDY = StudySpecification(
    "s", (4,), (2,), (3,), (200,), (2.0,), (0, 1, 2), ("em-default", "em-truth")
)
FIELDS = [
    "dimension",
    "components",
    "order",
    "samples",
    "separation",
    "seed",
    "method",
    "status",
    "mean_error",
    "weight_error",
    "variance_error",
    "log_likelihood_gap",
    "seconds",
    "message",
]


def result(k, **values):
    return CellResult(STUDY.cells()[k], "ok", 0.1, 0.2, 0.3, -1e-5, 0.5, "said", **values)


def filled(folder, count=3):
    with CellStore(folder, STUDY) as store:
        for k in range(count):
            store.append(result(k))
    return (folder / "cells.jsonl").read_bytes()


def test_a_line_has_exactly_the_documented_fields():
    line = result(0).to_line()
    assert list(json.loads(line)) == FIELDS
    assert line.count("\n") == 1
    assert CellResult.from_line(line) == result(0)


COUNTS = IntervalCounts(2, 1, 8, 7, 8, 8, 0.25)


def test_fields_of_other_questions_are_added_only_where_they_are_asked():
    key = replace(STUDY.cells()[0], missing=0.25)
    cell = CellResult(key, "ok", 0.1, message="said", components_found=3, intervals=COUNTS)
    entry = json.loads(cell.to_line())
    added = {"missing": 0.25, "components_found": 3} | asdict(COUNTS)
    assert {name: value for name, value in entry.items() if name not in FIELDS} == added
    again = CellResult.from_line(cell.to_line())
    assert (again.key, again.components_found, again.intervals) == (key, 3, COUNTS)


def test_a_fit_without_intervals_says_so_in_nulls():
    cell = result(0, intervals=IntervalCounts())
    assert json.loads(cell.to_line())["means_inside"] is None
    again = CellResult.from_line(cell.to_line())
    assert again.intervals.means_inside is None
    assert math.isnan(again.intervals.moment_test_p_value)


@pytest.mark.parametrize(
    "change", [{"colour": 1}, {"means_inside": 1.5}, {"components_found": True}, {"missing": "a"}]
)
def test_a_line_with_other_fields_or_kinds_of_values_is_no_cell(change):
    with pytest.raises(ValueError, match=r"fields are not|is (1\.5|True|'a')"):
        CellResult.from_line(json.dumps(json.loads(result(0).to_line()) | change))


def test_a_folder_of_an_older_version_goes_on(tmp_path):
    # written before outliers, missing cells and intervals existed
    line = (
        '{"dimension": 4, "components": 2, "order": 3, "samples": 200, "separation": 2.0, '
        '"seed": 0, "method": "em-default", "status": "ok", "mean_error": 0.1, '
        '"weight_error": 0.2, "variance_error": 0.3, "log_likelihood_gap": -1e-05, '
        '"seconds": 0.5, "message": "said"}\n'
    )
    spec = (
        'name = "s"\n\n[grid]\ndimension = [4]\ncomponents = [2]\norder = [3]\nsamples = [200]\n'
        'separation = [2.0]\nseeds = [0, 1, 2]\nmethods = ["em-default", "em-truth"]\n'
    )
    (tmp_path / "cells.jsonl").write_text(line)
    (tmp_path / "study.toml").write_text(spec)
    with CellStore(tmp_path, parse_specification(STUDY.to_toml())) as store:
        assert store.missing() == STUDY.cells()[1:]
        assert store.finished[STUDY.cells()[0]] == result(0)
    assert result(0).to_line() == line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(value):
    cell = CellResult(CellKey(4, 2, 3, 9, 0.1, 0, "moments"), "failed", mean_error=value)
    entry = json.loads(cell.to_line(), parse_constant=pytest.fail)
    assert entry["mean_error"] is None
    assert math.isnan(CellResult.from_line(cell.to_line()).mean_error)


def test_a_message_stays_on_its_line():
    cell = CellResult(STUDY.cells()[0], "failed", message='ä "quoted"\nsecond\x00 line')
    assert cell.to_line().count("\n") == 1
    assert CellResult.from_line(cell.to_line()).message == cell.message


def test_cells_are_kept_and_the_missing_ones_known(tmp_path):
    filled(tmp_path)
    with CellStore(tmp_path, STUDY) as store:
        assert store.missing() == STUDY.cells()[3:]
        assert list(store.finished.values()) == [result(k) for k in range(3)]
    assert not read_study(tmp_path).differences(STUDY)


def test_every_possible_tear_is_repaired_and_nothing_else_changes(tmp_path):
    whole = filled(tmp_path)
    path = tmp_path / "cells.jsonl"
    kept = whole[: whole[:-1].rfind(b"\n") + 1]
    for cut in (*range(len(kept) + 1, len(whole), 17), len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert len(read_cells(tmp_path)) == (3 if cut == len(whole) - 1 else 2)
        with CellStore(tmp_path, STUDY) as store:
            assert len(store.finished) in (2, 3)
        # a line that only lacks its line end is complete
        assert path.read_bytes() == (whole if cut == len(whole) - 1 else kept)


@pytest.mark.parametrize(
    "tail", [b"{", b'{"dimension": 4}\n', b"\x00" * 50, b"\xff\xfe\n", b"null\n", b"[" * 5000]
)
def test_a_damaged_last_line_is_cut_off(tmp_path, tail):
    whole = filled(tmp_path)
    (tmp_path / "cells.jsonl").write_bytes(whole + tail)
    assert len(read_cells(tmp_path)) == 3
    with CellStore(tmp_path, STUDY) as store:
        store.append(result(3))
    assert (tmp_path / "cells.jsonl").read_bytes() == whole + result(3).to_line().encode()


def test_a_torn_only_line_leaves_an_empty_file(tmp_path):
    filled(tmp_path, 0)
    (tmp_path / "cells.jsonl").write_bytes(b'{"dimension": 4, "comp')
    with CellStore(tmp_path, STUDY) as store:
        assert len(store.missing()) == 6
    assert (tmp_path / "cells.jsonl").read_bytes() == b""


def test_a_damaged_line_in_the_middle_is_an_error_with_its_number(tmp_path):
    whole = filled(tmp_path)
    lines = whole.splitlines(keepends=True)
    (tmp_path / "cells.jsonl").write_bytes(lines[0] + b"{}\n" + lines[1])
    with pytest.raises(StudyFolderError, match="line 2"), CellStore(tmp_path, STUDY):
        pass


def test_a_cell_is_never_doubled(tmp_path):
    whole = filled(tmp_path)
    with CellStore(tmp_path, STUDY) as store, pytest.raises(ValueError, match="stored already"):
        store.append(result(0))
    assert (tmp_path / "cells.jsonl").read_bytes() == whole


def test_one_process_at_a_time(tmp_path):
    with CellStore(tmp_path, STUDY) as store:
        with pytest.raises(StudyFolderError, match="another process"), CellStore(tmp_path, STUDY):
            pass
        store.append(result(0))
    with CellStore(tmp_path, STUDY) as store:
        assert len(store.finished) == 1


def test_another_study_is_refused_and_the_same_meaning_is_not(tmp_path):
    whole = filled(tmp_path)
    values = {f: getattr(STUDY, f) for f in STUDY.__dataclass_fields__}
    same = StudySpecification(**values | {"seeds": (2, 1, 0), "source": "# written anew\n"})
    with CellStore(tmp_path, same) as store:
        assert len(store.finished) == 3
    for other in ({"samples": (201,)}, {"name": "t"}, {"seeds": (0, 1)}):
        with pytest.raises(StudyFolderError, match=next(iter(other))):
            CellStore(tmp_path, StudySpecification(**values | other)).__enter__()
    assert (tmp_path / "cells.jsonl").read_bytes() == whole


def test_cells_without_their_study_are_refused(tmp_path):
    filled(tmp_path)
    (tmp_path / "study.toml").unlink()
    with pytest.raises(StudyFolderError, match=r"study\.toml is not"):
        CellStore(tmp_path, STUDY).__enter__()


def test_a_folder_without_a_study_is_named(tmp_path):
    with pytest.raises(StudyFolderError, match="holds no study"):
        read_study(tmp_path / "nothing")


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path, monkeypatch):
    whole = filled(tmp_path)
    with CellStore(tmp_path, STUDY) as store:
        write = store.append.__globals__["os"].write
        monkeypatch.setattr("os.write", lambda descriptor, line: write(descriptor, line[:20]))
        with pytest.raises(OSError, match="only 20"):
            store.append(result(3))
        monkeypatch.undo()
        assert (tmp_path / "cells.jsonl").read_bytes() == whole
        store.append(result(3))
    assert len(read_cells(tmp_path)) == 4
