"""`solvers` and `gpu` are real folders at the top; tensoralg reaches them through links."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = ["solvers", "gpu"]

# an unpacked source distribution holds real folders in the links' place, by design
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")


@pytest.mark.parametrize("name", LINKS)
def test_link_is_relative_and_resolves(name):
    link = ROOT / "tensoralg" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../{name}"
    assert link.resolve() == (ROOT / name).resolve()
    assert (link / "__init__.py").is_file()
    assert not (ROOT / name).is_symlink()


@pytest.mark.parametrize("name", LINKS)
def test_git_stores_a_link_not_a_copy(name):
    listing = subprocess.run(
        ["git", "ls-files", "--stage", f"tensoralg/{name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(listing) == 1
    assert listing[0].startswith("120000 ")


@pytest.mark.parametrize("name", LINKS)
def test_the_linked_package_has_one_name(name):
    package = __import__(f"tensoralg.{name}", fromlist=["_"])
    assert package.__name__ == f"tensoralg.{name}"
    assert Path(package.__file__).resolve() == (ROOT / name / "__init__.py").resolve()
