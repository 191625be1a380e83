"""Sphinx configuration: furo, numpydoc docstrings, Markdown pages."""

import logging
import subprocess
import sys
from pathlib import Path

import tensoralg

HERE = Path(__file__).parent
logging.getLogger("tensoralg").setLevel(logging.WARNING)  # figures train networks

project = "tensoralg"
author = "The tensoralg developers"
copyright = "The tensoralg developers"
version = release = tensoralg.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "matplotlib.sphinxext.plot_directive",
    "numpydoc",
    "myst_nb",
]
myst_enable_extensions = ["amsmath", "deflist", "dollarmath"]
myst_heading_anchors = 3
# the notebooks run in their own make target; the pages here hold no cells
nb_execution_mode = "off"

autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's sections give the types, with shapes
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
# module docstrings list their sources without citing each one in the text
suppress_warnings = ["ref.citation"]
# the home page's figures are drawn when it is built
plot_basedir = str(HERE)
plot_formats = [("png", 110)]
plot_html_show_formats = False
templates_path = ["_templates"]

exclude_patterns = ["_build", "_templates", "generated/command_line.md"]
html_theme = "furo"
html_title = f"tensoralg {release}"
html_theme_options = {"navigation_with_keys": True}


def command_line_reference() -> str:
    """What the commands say of themselves, as Markdown."""
    command = [sys.executable, "-m", "typer", "tensoralg.cli", "utils", "docs"]
    done = subprocess.run(
        [*command, "--name", "tensoralg"], capture_output=True, text=True, check=True
    )
    return done.stdout.replace("# `tensoralg`", "# Reference", 1)


(HERE / "generated").mkdir(exist_ok=True)
(HERE / "generated" / "command_line.md").write_text(command_line_reference(), encoding="utf-8")
