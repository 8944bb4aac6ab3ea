"""Settings of the documentation's build (`make docs`): the pages of this folder and the API's docstrings as HTML."""

project = "dynajit"
copyright = "the dynajit developers"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "alabaster"
html_static_path = ["_static"]  # custom.css, which the theme looks for
html_theme_options = {
    "page_width": "1200px",
    "body_max_width": "auto",
    "description": "A just-in-time compiler for PyTorch programs",
}
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
# pages name files of the repository, which are not pages
suppress_warnings = ["myst.xref_missing"]
