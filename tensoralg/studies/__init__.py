"""Scripted parameter-recovery studies: known mixtures, several methods, resumable, reported."""

from tensoralg.studies.cells import (
    CellResult,
    CellStore,
    StudyFolderError,
    read_cells,
    read_study,
)
from tensoralg.studies.methods import METHODS, Method
from tensoralg.studies.report import write_report
from tensoralg.studies.runner import run_cell, run_study
from tensoralg.studies.specification import (
    CellKey,
    SpecificationError,
    StudySpecification,
    load_specification,
    parse_specification,
)

__all__ = [
    "METHODS",
    "CellKey",
    "CellResult",
    "CellStore",
    "Method",
    "SpecificationError",
    "StudyFolderError",
    "StudySpecification",
    "load_specification",
    "parse_specification",
    "read_cells",
    "read_study",
    "run_cell",
    "run_study",
    "write_report",
]
