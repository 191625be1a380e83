"""Every public function and class is documented the numpydoc way, with an example."""

import dataclasses
import importlib
import inspect
import pkgutil
import re

import pytest

import tensoralg

validate = pytest.importorskip("numpydoc.validate").validate

# the command line documents itself through its help texts
SKIPPED = {"tensoralg.cli", "tensoralg.__main__", "tensoralg.studies.demo"}
MISSING, NO_PARAMETERS, UNKNOWN_PARAMETERS, NO_RETURNS, NO_EXAMPLE = (
    "GL08",
    "PR01",
    "PR02",
    "RT01",
    "EX01",
)


def public_modules():
    names = ["tensoralg"]
    for module in pkgutil.walk_packages(tensoralg.__path__, "tensoralg."):
        private = any(part.startswith("_") for part in module.name.split("."))
        if not private and module.name not in SKIPPED:
            names.append(module.name)
    return names


def public_objects(module):
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name in vars(module) if not name.startswith("_")]
    for name in sorted(names):
        value = getattr(module, name)
        if getattr(value, "__module__", None) == module.__name__ and (
            inspect.isfunction(value) or inspect.isclass(value)
        ):
            yield name, value


def complaints(path, codes):
    return [f"{path}: {text}" for code, text in validate(path)["errors"] if code in codes]


def check_class(path, cls):
    if issubclass(cls, Exception) or not inspect.getdoc(cls):
        return complaints(path, {MISSING})
    found = []
    text = inspect.getdoc(cls)
    if dataclasses.is_dataclass(cls):
        # fields stand under Parameters or Attributes, as the class prefers
        for field in dataclasses.fields(cls):
            if not field.name.startswith("_") and not re.search(rf"\b{field.name}\b", text):
                found.append(f"{path}: field {field.name!r} is not documented")
    elif hasattr(cls, "__members__"):
        return found
    else:
        found += complaints(path, {NO_PARAMETERS, UNKNOWN_PARAMETERS, NO_EXAMPLE})
    for name, member in vars(cls).items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            found += complaints(f"{path}.{name}", {MISSING})
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            found += complaints(
                f"{path}.{name}", {MISSING, NO_PARAMETERS, UNKNOWN_PARAMETERS, NO_RETURNS}
            )
    return found


@pytest.mark.parametrize("module_name", public_modules())
def test_public_names_are_documented(module_name):
    module = importlib.import_module(module_name)
    found = [] if module.__doc__ else [f"{module_name}: no module docstring"]
    for name, value in public_objects(module):
        path = f"{module_name}.{name}"
        if inspect.isclass(value):
            found += check_class(path, value)
        else:
            found += complaints(
                path, {MISSING, NO_PARAMETERS, UNKNOWN_PARAMETERS, NO_RETURNS, NO_EXAMPLE}
            )
    assert not found, "\n".join(found)


def test_the_check_sees_what_is_missing(tmp_path, monkeypatch):
    (tmp_path / "undocumented_example.py").write_text(
        'def area(width, height):\n    """Multiply."""\n    return width * height\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = complaints("undocumented_example.area", {NO_PARAMETERS, NO_RETURNS, NO_EXAMPLE})
    assert len(found) == 3
