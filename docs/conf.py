"""The site of these pages: `make docs`. Nothing is fetched while it is built, and nothing while it is read."""

from __future__ import annotations

import json
import os
import re
import shutil
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
html_title = f"evopipe {__version__}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["assets"]
html_js_files = ["search_from_disk.js"]
html_search_scorer = str(HERE / "assets/scorer.js")


_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def leave_out_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Keep the words alone of links to files that are in the repository and not on the site."""
    folder = (HERE / page).parent

    def shown(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        there = target.is_relative_to(HERE) and target.is_file()
        return link[0] if there else link[1]

    source[0] = _LINK.sub(shown, source[0])


def older() -> dict[str, Path]:
    """Return the sites of other versions by their names, the newest first: the folders in the folder `OLDER_SITES`."""
    home = os.environ.get("OLDER_SITES")
    found = [path.parent for path in Path(home).glob("*/index.html")] if home else []
    numbers = {path: [int(part) for part in re.findall(r"\d+", path.name)] for path in found}
    ordered = sorted(found, key=lambda path: (numbers[path], path.name), reverse=True)
    return {path.name: path for path in ordered if path.name != __version__}


def list_versions(app: Sphinx, page: str, source: list[str]) -> None:
    """Name the other versions on their page. The links are HTML, because the pages are no sources of this build."""
    if page == "versions":
        lines = [f'- <a href="versions/{name}/index.html">{name}</a>' for name in older()]
        source[0] += "\n" + "\n".join(lines or ["- none"]) + "\n"


def copy_versions(app: Sphinx, failed: Exception | None) -> None:
    """Put the sites of other versions below this one."""
    for name, site in older().items() if failed is None else ():
        shutil.copytree(site, Path(app.outdir, "versions", name), dirs_exist_ok=True)


def write_texts(app: Sphinx, failed: Exception | None) -> None:
    """Write the texts of all pages as one script, for excerpts of a search from disk (`search_from_disk.js`)."""
    if failed is None:
        texts = {page: app.env.get_doctree(page).astext() for page in sorted(app.env.found_docs)}
        Path(app.outdir, "_static/texts.js").write_text(f"window.pageTexts = {json.dumps(texts)};\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", leave_out_links)
    app.connect("source-read", list_versions)
    app.connect("build-finished", copy_versions)
    app.connect("build-finished", write_texts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
