"""`import tensoralg` stays light, and its public names agree in all three places."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import tensoralg
import tensoralg.core

HEAVY = {"cvxpy", "sympy", "sklearn", "matplotlib", "numba", "torch", "scipy", "pandas", "cupy"}


def loaded_after(statement):
    """Top-level modules in a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(result.stdout.split())


CORE = [f"tensoralg.core.{module.name}" for module in pkgutil.iter_modules(tensoralg.core.__path__)]


@pytest.mark.parametrize(
    "statement",
    [
        "import tensoralg",
        "import tensoralg; dir(tensoralg); tensoralg.errors",
        "import tensoralg.gpu.namespaces",
        "import tensoralg.polyadic",
        "import " + ", ".join(CORE),
    ],
    ids=["package", "names", "namespaces", "polyadic", "core"],
)
def test_light_imports_load_no_heavy_library(statement):
    assert not loaded_after(statement) & HEAVY


def test_the_guard_sees_a_heavy_library():
    assert "scipy" in loaded_after("import scipy")


def stub_names():
    stub = Path(tensoralg.__file__).with_suffix(".pyi")
    names = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            # only the redundant form `name as name` re-exports from a stub
            names |= {alias.asname for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return names


def test_public_names_agree_between_package_and_stub():
    assert set(tensoralg.__all__) == stub_names()
    assert len(set(tensoralg.__all__)) == len(tensoralg.__all__)
    assert set(tensoralg.__all__) <= set(dir(tensoralg))


@pytest.mark.parametrize("name", sorted(tensoralg.__all__))
def test_every_public_name_resolves(name):
    assert getattr(tensoralg, name) is not None
    namespace = {}
    exec(f"from tensoralg import {name}", namespace)
    assert namespace[name] is getattr(tensoralg, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tensors'"):
        tensoralg.tensors  # noqa: B018
