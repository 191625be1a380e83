"""The studies of the folder ``studies``: each is valid, and a small version of it runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from tensoralg.mixtures import component_bound
from tensoralg.studies import load_specification, run_study, write_report

FOLDER = Path(__file__).parents[2] / "studies"
SHIPPED = sorted(FOLDER.glob("*.toml"))
BY_NAME = {path.stem: path for path in SHIPPED}


def test_studies_are_shipped():
    wanted = "recovery recovery_large recovery_order3 recovery_order3_bound recovery_million"
    wanted += " recovery_higher_order recovery_higher_order_bound rank_detection outliers missing"
    assert set(BY_NAME) >= {*wanted.split(), "coverage"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_study_says_how_to_run_it(path):
    study = load_specification(path)
    assert study.cells()
    assert f"tensoralg study run studies/{path.name} --out " in study.to_toml()


def test_the_recovery_studies_reach_the_sizes_they_are_for():
    studies = [load_specification(p) for name, p in BY_NAME.items() if "recovery" in name]
    cells = [cell for study in studies for cell in study.cells()]
    assert max(cell.dimension for cell in cells) == 60
    assert {cell.samples for cell in cells} >= {10_000, 100_000, 1_000_000}
    assert {cell.order for cell in cells} >= {3, 4, 5}
    for name in ("recovery_order3_bound", "recovery_higher_order_bound"):
        study = load_specification(BY_NAME[name])
        (d,), (m,) = study.dimension, study.order
        bounds = {component_bound(d, m, form="homogeneous"), component_bound(d, m)}
        assert set(study.components) == bounds


def test_the_coverage_study_has_as_many_fits_as_its_figures_need():
    study = load_specification(BY_NAME["coverage"])
    assert study.uncertainty
    assert len(study.seeds) == 500
    assert len(study.grid_points()) == 1


def shrunken(study):
    """Keep what a study asks, and make it small: few columns, components, rows and seeds."""

    def fewest(values, most):
        return tuple(sorted({min(value, most) for value in values}))[-1:]

    return replace(
        study,
        source="",
        dimension=fewest(study.dimension, 8),
        components=fewest(study.components, 2),
        order=study.order[-1:],
        samples=fewest(study.samples, 1000),
        separation=(2.0,),
        outliers=tuple(study.outliers[k] for k in sorted({0, len(study.outliers) - 1})),
        missing=tuple(study.missing[k] for k in sorted({0, len(study.missing) - 1})),
        seeds=study.seeds[:1],
    )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_small_version_of_a_shipped_study_runs(path, tmp_path):
    study = shrunken(load_specification(path))
    cells = run_study(study, tmp_path)
    assert {cell.key.method for cell in cells} == set(study.methods)
    assert [f"{c.key.method}: {c.message}" for c in cells if c.status == "failed"] == []
    for cell in cells:
        assert cell.mean_error >= 0
        assert (cell.intervals is not None) == study.uncertainty
        assert (cell.components_found is not None) == (path.stem == "rank_detection")
    assert write_report(tmp_path).exists()
