"""Sphinx configuration: furo, numpydoc docstrings, Markdown pages."""

import tensoralg

project = "tensoralg"
author = "The tensoralg developers"
copyright = "The tensoralg developers"
version = release = tensoralg.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
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
templates_path = ["_templates"]

exclude_patterns = ["_build", "_templates"]
html_theme = "furo"
html_title = f"tensoralg {release}"
html_theme_options = {"navigation_with_keys": True}
