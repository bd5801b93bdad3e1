"""The site of these pages: `make docs`. Nothing is fetched while it is built, and nothing while it is read."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from evopipe import __version__

HERE = Path(__file__).parent

project, author, release = "evopipe", "the authors of evopipe", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4  # links to headings, as the pages have them
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": False}
python_maximum_signature_line_length = 80
default_role = "code"  # docstrings have words in single backticks
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes in the class's own text; properties stand by themselves

html_theme = "furo"
html_title = "evopipe"
html_show_sourcelink = False
html_copy_source = False


_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def leave_out_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Keep the words alone of links to files that are in the repository and not on the site."""
    folder = (HERE / page).parent

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        there = target.is_relative_to(HERE) and target.is_file()
        return link[0] if there else link[1]

    source[0] = _LINK.sub(shown, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", leave_out_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
