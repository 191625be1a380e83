"""What a study is: a grid of known mixtures, crossed with seeds and methods, read from TOML."""

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tensoralg.core.errors import TensorAlgError
from tensoralg.studies.methods import METHODS

__all__ = [
    "CellKey",
    "GridPoint",
    "SpecificationError",
    "StudySpecification",
    "load_specification",
    "parse_specification",
]

_SMALLEST = {"dimension": 1, "components": 1, "order": 3, "samples": 1}
_GRID = ("dimension", "components", "order", "samples", "separation", "seeds", "methods")
# shares of the data that are spoiled; a study that does not name them has clean rows
_SPOILED = ("outliers", "missing")
_MOST_CELLS = 1_000_000


class SpecificationError(TensorAlgError, ValueError):
    """A study's specification is not valid; the message names the key and what it accepts."""


class GridPoint(NamedTuple):
    """The values of a cell that its seeds and methods share.

    Attributes
    ----------
    dimension, components, order, samples : int
        Sizes, as in `CellKey`.
    separation, outliers, missing : float
        Scale of the means, shares of wild rows and of missing cells.
    """

    dimension: int
    components: int
    order: int
    samples: int
    separation: float
    outliers: float = 0.0
    missing: float = 0.0

    def is_clean(self) -> bool:
        """Tell whether the rows are as they were drawn."""
        return self.outliers == 0 and self.missing == 0


# plain numbers and a name: compared and hashed by value, as the key of a finished cell
@dataclass(frozen=True, slots=True, order=True)
class CellKey:
    """One fit of a study: a grid point, a seed and a method.

    Attributes
    ----------
    dimension, components, order, samples : int
        Size of the known mixture, order of the moments, number of rows drawn.
    separation : float
        Scale of the means: ``means ~ separation * N(0, I)``.
    seed : int
        Which draw of the grid point.
    method : str
        One of `tensoralg.studies.METHODS`.
    outliers : float
        Share of the rows that are replaced by wild ones.
    missing : float
        Share of the cells that are taken away.
    """

    dimension: int
    components: int
    order: int
    samples: int
    separation: float
    seed: int
    method: str
    outliers: float = 0.0
    missing: float = 0.0

    @property
    def grid_point(self) -> GridPoint:
        """The values that the seeds and methods share."""
        return GridPoint(
            self.dimension,
            self.components,
            self.order,
            self.samples,
            self.separation,
            self.outliers,
            self.missing,
        )

    def clean(self) -> "CellKey":
        """Name the cell of the same rows before anything in them was spoiled."""
        return replace(self, outliers=0.0, missing=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class StudySpecification:
    """A study: every list of its grid crossed with every other.

    Attributes
    ----------
    name : str
        Title of the study.
    dimension, components, order, samples : tuple of int
        Grid values.
    separation : tuple of float
        Grid values of the scale of the means.
    seeds : tuple of int
        Draws per grid point.
    methods : tuple of str
        Names from `tensoralg.studies.METHODS`.
    source : str
        The TOML text it was read from, or "" when it was made in code.
    outliers, missing : tuple of float
        Grid values of the shares of wild rows and of missing cells.
    uncertainty : bool
        Whether intervals and the moment test of our fits are checked in every cell.

    Examples
    --------
    >>> from tensoralg.studies import StudySpecification
    >>> study = StudySpecification("s", (8,), (2, 3), (3,), (500,), (1.0,), (0, 1), ("em-truth",))
    >>> len(study.cells())
    4
    """

    name: str
    dimension: tuple[int, ...]
    components: tuple[int, ...]
    order: tuple[int, ...]
    samples: tuple[int, ...]
    separation: tuple[float, ...]
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    source: str = ""
    outliers: tuple[float, ...] = (0.0,)
    missing: tuple[float, ...] = (0.0,)
    uncertainty: bool = False

    def grid_points(self) -> list[GridPoint]:
        """List every grid point."""
        return [
            GridPoint(*values) for values in itertools.product(*map(self._axis, GridPoint._fields))
        ]

    def cells(self) -> list[CellKey]:
        """List every cell: grid points first, then seeds, then methods."""
        several = itertools.product(self.grid_points(), self.seeds, self.methods)
        return [CellKey(*p[:5], seed, method, *p[5:]) for p, seed, method in several]

    def _axis(self, key: str) -> tuple[Any, ...]:
        """Return the values of one list of the grid."""
        values: tuple[Any, ...] = getattr(self, key)
        return values

    def differences(self, other: "StudySpecification") -> list[str]:
        """Say where two studies differ in meaning; the order within lists has none.

        Parameters
        ----------
        other : StudySpecification
            The study to compare with.

        Returns
        -------
        list of str
            One phrase per differing key; empty when both mean the same study.
        """
        found = [] if self.name == other.name else [f"name {self.name!r} is not {other.name!r}"]
        if self.uncertainty != other.uncertainty:
            found.append(f"uncertainty {self.uncertainty} is not {other.uncertainty}")
        for key in (*_GRID, *_SPOILED):
            mine, theirs = getattr(self, key), getattr(other, key)
            if sorted(mine) != sorted(theirs):
                found.append(f"{key} {list(mine)} is not {list(theirs)}")
        return found

    def to_toml(self) -> str:
        """Write the study as TOML: the text it came from, or the same meaning in full."""
        if self.source:
            return self.source
        lines = [f"name = {_toml_string(self.name)}", "", "[grid]"]
        if self.uncertainty:
            lines.insert(1, "uncertainty = true")
        for key in (*_GRID, *(key for key in _SPOILED if self._axis(key) != (0.0,))):
            values = self._axis(key)
            written = [_toml_string(v) if isinstance(v, str) else repr(v) for v in values]
            lines.append(f"{key} = [{', '.join(written)}]")
        return "\n".join(lines) + "\n"


def load_specification(path: str | Path) -> StudySpecification:
    """Read a study from a TOML file.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    StudySpecification
        The study.

    Raises
    ------
    SpecificationError
        If the file is not UTF-8 TOML, or a key is missing, unknown or has a value that is
        not accepted.
    OSError
        If the file cannot be read.

    Examples
    --------
    >>> from tensoralg.studies import load_specification
    >>> load_specification("no such file.toml")
    Traceback (most recent call last):
        ...
    FileNotFoundError: [Errno 2] No such file or directory: 'no such file.toml'
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecificationError(
            f"{path}: not UTF-8 text (byte {error.start}); TOML must be UTF-8"
        ) from None
    try:
        return parse_specification(text)
    except SpecificationError as error:
        raise SpecificationError(f"{path}: {error}") from None


def parse_specification(source: str | Mapping[str, Any]) -> StudySpecification:
    """Make a study from TOML text, or from a dictionary of the same structure.

    Parameters
    ----------
    source : str or mapping
        TOML text, or what `tomllib.loads` makes of it.

    Returns
    -------
    StudySpecification
        The study.

    Raises
    ------
    SpecificationError
        If a key is missing, unknown or has a value that is not accepted.

    Examples
    --------
    >>> from tensoralg.studies import parse_specification
    >>> grid = dict(dimension=[8], components=[2], order=[3], samples=[500], separation=[1.0])
    >>> grid |= {"seeds": 3, "methods": ["moments"]}
    >>> parse_specification({"name": "s", "grid": grid}).seeds
    (0, 1, 2)
    """
    text = ""
    if isinstance(source, str):
        text = source if source.endswith("\n") else source + "\n"
        try:
            source = tomllib.loads(source)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise SpecificationError(f"not valid TOML: {error}") from None
    _check_keys(source, ("name", "grid"), ("uncertainty",), "the top level")
    name, grid = source["name"], source["grid"]
    uncertainty = source.get("uncertainty", False)
    if not isinstance(uncertainty, bool):
        raise SpecificationError(f"uncertainty must be true or false; got {uncertainty!r}")
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise SpecificationError(f"name must be a non-empty string on one line; got {name!r}")
    if not isinstance(grid, Mapping):
        raise SpecificationError(f"grid must be a table, [grid]; got {grid!r}")
    _check_keys(grid, _GRID, _SPOILED, "[grid]")
    study = StudySpecification(
        name=name,
        separation=tuple(_number("separation", v) for v in _list("separation", grid)),
        seeds=_seeds(grid),
        methods=tuple(_method(v) for v in _list("methods", grid)),
        source=text,
        uncertainty=uncertainty,
        **{
            key: tuple(_integer(key, v, least) for v in _list(key, grid))
            for key, least in _SMALLEST.items()
        },
        outliers=_shares("outliers", grid),
        missing=_shares("missing", grid),
    )
    lists = (*_GRID, *_SPOILED)
    if math.prod(len(getattr(study, key)) for key in lists) > _MOST_CELLS:
        raise SpecificationError(f"the grid has more than {_MOST_CELLS:,} cells; split the study")
    for key in lists:
        _refuse_repeats(key, getattr(study, key))
    return study


def _check_keys(
    table: Mapping[str, Any], needed: Sequence[str], possible: Sequence[str], where: str
) -> None:
    accepted = (*needed, *possible)
    for key in table:
        if key not in accepted:
            hint = "; it belongs in [grid]" if key in (*_GRID, *_SPOILED) else ""
            hint = "; it belongs at the top level" if key == "uncertainty" else hint
            raise SpecificationError(
                f"unknown key {key!r} at {where}{hint}; accepted: {', '.join(accepted)}"
            )
    for key in needed:
        if key not in table:
            raise SpecificationError(f"missing key {key!r} at {where}")


def _list(key: str, grid: Mapping[str, Any]) -> Sequence[Any]:
    values = grid[key]
    if not isinstance(values, list | tuple):
        raise SpecificationError(f"{key} must be a list, as in {key} = [...]; got {values!r}")
    if not values:
        raise SpecificationError(f"{key} is an empty list; give at least one value")
    return values


def _integer(key: str, value: Any, least: int) -> int:
    # 1e5 is how a number of samples is often written
    integral = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not integral:
        raise SpecificationError(f"{key} must hold integers; got {value!r}")
    if value < least:
        raise SpecificationError(f"{key} must be at least {least}; got {value!r}")
    return int(value)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecificationError(f"{key} must hold numbers; got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise SpecificationError(f"{key} must be finite and not negative; got {value!r}")
    return float(value) + 0.0


def _shares(key: str, grid: Mapping[str, Any]) -> tuple[float, ...]:
    values = tuple(_number(key, value) for value in (_list(key, grid) if key in grid else (0.0,)))
    for value in values:
        if value >= 1:
            raise SpecificationError(f"{key} must be shares, at least 0 and below 1; got {value!r}")
    return values


def _seeds(grid: Mapping[str, Any]) -> tuple[int, ...]:
    seeds = grid["seeds"]
    if not isinstance(seeds, list | tuple):
        if isinstance(seeds, bool) or not isinstance(seeds, int):
            raise SpecificationError(f"seeds must be a list of integers or a count; got {seeds!r}")
        if not 1 <= seeds <= _MOST_CELLS:
            raise SpecificationError(f"seeds as a count must be at least 1; got {seeds!r}")
        return tuple(range(seeds))
    return tuple(_integer("seeds", value, 0) for value in _list("seeds", grid))


def _method(value: Any) -> str:
    if not isinstance(value, str) or value not in METHODS:
        raise SpecificationError(f"unknown method {value!r}; accepted: {', '.join(METHODS)}")
    return str(value)


def _refuse_repeats(key: str, values: tuple[Any, ...]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise SpecificationError(f"{key} holds {value!r} twice")
        seen.add(value)


def _toml_string(text: str) -> str:
    # printable text only (checked above): backslash and quote are all that TOML wants escaped
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
