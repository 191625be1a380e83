"""What the API reference lists is documented the numpydoc way; everything else has a docstring."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import tensoralg

validate = pytest.importorskip("numpydoc.validate").validate

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
LISTED = [f"tensoralg.{name}" for name in re.findall(r"^   ([A-Za-z_][\w.]*)$", API, re.MULTILINE)]

# numpydoc's codes
MISSING, PARAMETERS, UNKNOWN, RETURNS, EXAMPLES = "GL08", "PR01", "PR02", "RT01", "EX01"


def complaints(path, codes):
    return [f"{path}: {text}" for code, text in validate(path)["errors"] if code in codes]


def own_members(cls):
    """Public members that the class or a base of this package defines."""
    members = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__.startswith("tensoralg."):
            members |= {name: m for name, m in vars(owner).items() if not name.startswith("_")}
    return members


def check_class(path, cls):
    text = inspect.getdoc(cls)
    if not text:
        return [f"{path}: no docstring"]
    if issubclass(cls, Exception) or hasattr(cls, "__members__"):
        return []
    found = []
    if dataclasses.is_dataclass(cls):
        # fields stand under Parameters or Attributes, as the class prefers
        found += [
            f"{path}: field {field.name!r} is not documented"
            for field in dataclasses.fields(cls)
            if not field.name.startswith("_") and not re.search(rf"\b{field.name}\b", text)
        ]
    else:
        found += complaints(path, {PARAMETERS, UNKNOWN, EXAMPLES})
    for name, member in own_members(cls).items():
        if isinstance(member, property):
            found += complaints(f"{path}.{name}", {MISSING})
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            # the summary line says enough of what a method without arguments returns
            parameters = inspect.signature(getattr(cls, name)).parameters
            takes_arguments = len(parameters) > inspect.isfunction(member)
            codes = {RETURNS} if takes_arguments else set()
            found += complaints(f"{path}.{name}", {MISSING, PARAMETERS, UNKNOWN} | codes)
    return found


def check(path, value):
    if inspect.isclass(value):
        return check_class(path, value)
    if inspect.isfunction(value):
        return complaints(path, {MISSING, PARAMETERS, UNKNOWN, RETURNS, EXAMPLES})
    return []


def resolve(path):
    value = tensoralg
    for name in path.split(".")[1:]:
        if inspect.ismodule(value) and not hasattr(value, name):
            importlib.import_module(f"{value.__name__}.{name}")
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", LISTED)
def test_the_api_reference_is_fully_documented(path):
    value = resolve(path)
    if not inspect.ismodule(value):
        assert not (found := check(path, value)), "\n".join(found)
        return
    found = [] if value.__doc__ else [f"{path}: no module docstring"]
    for name in value.__all__:
        found += check(f"{path}.{name}", getattr(value, name))
    assert not found, "\n".join(found)


ROOMS = ("completely_positive", "mixtures", "nn", "polyadic", "symmetric")


@pytest.mark.parametrize("room", ["tensoralg", *(f"tensoralg.{room}" for room in ROOMS)])
def test_the_api_reference_lists_every_public_name(room):
    rooms = {"__version__", "errors", "studies", *ROOMS}
    names = {f"{room}.{name}" for name in set(importlib.import_module(room).__all__) - rooms}
    assert names <= set(LISTED)


def modules():
    found = pkgutil.walk_packages(tensoralg.__path__, "tensoralg.")
    return [module.name for module in found if not module.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(name)
    assert module.__doc__
    public = [
        value
        for key, value in vars(module).items()
        if not key.startswith("_")
        and getattr(value, "__module__", None) == name
        and (inspect.isfunction(value) or inspect.isclass(value))
    ]
    assert not [value.__qualname__ for value in public if not value.__doc__]


def test_the_check_sees_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "undocumented_example.py").write_text(
        'def area(width, height):\n    """Multiply."""\n    return width * height\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("undocumented_example")
    assert len(check("undocumented_example.area", module.area)) == 3
