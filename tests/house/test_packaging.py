"""What hatchling builds holds the linked folders, and imports without the checkout."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tensoralg

ROOT = Path(__file__).parents[2]


def build(target, source, destination):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(destination)],
        cwd=source,
        capture_output=True,
        check=True,
    )
    (archive,) = destination.iterdir()
    return archive


def package_files(folder):
    """Relative names of the package's own files, links followed."""
    found = set()
    for place, folders, files in os.walk(folder / "tensoralg", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in files:
            if Path(name).suffix in (".py", ".pyi", ".typed"):
                found.add((Path(place) / name).relative_to(folder).as_posix())
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path_factory.mktemp("dist"))) as archive:
        archive.extractall(unpacked)
    return unpacked


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    unpacked = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", ROOT, tmp_path_factory.mktemp("dist"))) as archive:
        archive.extractall(unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    return folder


def test_wheel_holds_every_file_of_the_package_and_nothing_else(wheel):
    files = package_files(wheel)
    assert files == package_files(ROOT)
    assert {"tensoralg/solvers/__init__.py", "tensoralg/gpu/namespaces.py"} <= files
    assert {"tensoralg/py.typed", "tensoralg/__init__.pyi"} <= files
    top = {path.name for path in wheel.iterdir()}
    assert top == {"tensoralg", f"tensoralg-{tensoralg.__version__}.dist-info"}


IMPORT_FROM = """
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
for name in ("tensoralg", "tensoralg.core", "tensoralg.solvers", "tensoralg.gpu",
             "tensoralg.core.errors", "tensoralg.gpu.namespaces"):
    place = pathlib.Path(importlib.import_module(name).__file__)
    assert place.is_relative_to(sys.argv[1]), (name, place)
"""


def test_wheel_imports_from_an_empty_directory(wheel, tmp_path):
    # -I: neither the working directory nor PYTHONPATH lends a module
    subprocess.run(
        [sys.executable, "-I", "-c", IMPORT_FROM, str(wheel)], cwd=tmp_path, check=True, timeout=120
    )


def test_sdist_holds_the_linked_folders_and_what_the_project_needs(sdist):
    assert package_files(sdist) == package_files(ROOT)
    for name in ("pyproject.toml", "README.md", "LICENSE", "tests/conftest.py"):
        assert (sdist / name).is_file(), name


def test_wheel_built_from_the_sdist_is_the_same(sdist, tmp_path):
    with zipfile.ZipFile(build("wheel", sdist, tmp_path)) as archive:
        names = {name for name in archive.namelist() if name.endswith((".py", ".pyi", ".typed"))}
    assert names == package_files(ROOT)


def test_version_is_the_same_in_the_package_and_its_metadata():
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == tensoralg.__version__
