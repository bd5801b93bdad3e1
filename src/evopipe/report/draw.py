"""Drawing with matplotlib, as SVG text that belongs to the page: its fonts, its colours by day and by night.

Figures are drawn in the colours of `PALETTE`; afterwards each becomes a CSS variable, `var(--elite)`, which the page
defines for light and for dark. A colour from outside the palette is an error. One unit of a figure is one CSS pixel.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = {
    "ink": "#1d2227",
    "muted": "#626b76",
    "grid": "#e6e8ea",
    "surface": "#ffffff",
    "member": "#8b98a7",
    "elite": "#cf4a1f",
    "none": "#7c8591",
    "architecture": "#1f6fb4",
    "parameters": "#a87100",
    "activation": "#0d8a68",
    "rl_hp": "#b0508c",
    "train": "#5b8fb9",
    "evaluate": "#b9c9d6",
}
FONT = 12
NAMES = {colour: name for name, colour in PALETTE.items()}
Titles = Mapping[str, Sequence[str]]
"""By the gid of an artist: the tooltips of its markers, in order."""

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}\b")
_FAMILY = re.compile(r"font-family: [^;]*;? ?")
_NUMBER = re.compile(r"-?\d+\.\d+")
_STILL = re.compile(r"rotate\(-?0(\.0+)? [^)]*\)")
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # matplotlib brings it, so that every machine lays out alike; the page sets another
    "font.size": FONT,
    "text.color": PALETTE["ink"],
    "axes.edgecolor": PALETTE["grid"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.spines.bottom": False,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 1.0,
    "xtick.color": PALETTE["grid"],
    "ytick.color": PALETTE["grid"],
    "xtick.labelcolor": PALETTE["muted"],
    "ytick.labelcolor": PALETTE["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.pad": 7,
    "ytick.major.pad": 7,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "path.simplify": False,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style, whatever the user's own settings of matplotlib are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)  # type: ignore[arg-type]  # its keys are a literal type
        yield


def canvas(width: float, height: float, margins: tuple[float, float, float, float]) -> tuple[Figure, Axes]:
    """Return a figure and its axes.

    Args:
        width, height: in pixels.
        margins: left, right, top, bottom of the axes, in pixels.
    """
    from matplotlib.figure import Figure

    left, right, top, bottom = margins
    figure = Figure(figsize=(width / 72, height / 72))
    figure.patch.set_visible(False)
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )
    return figure, axes


def svg(figure: Figure, name: str, label: str, titles: Titles | None = None) -> str:
    """Return a drawn figure as an `<svg>` element.

    Args:
        figure: what was drawn, under `style`.
        name: its name on the page; it keeps the ids of different figures apart.
        label: what it shows, for those who do not see it.
        titles: tooltips.

    Raises:
        KeyError: something has a colour that is not in the palette.
    """
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(stream.getvalue())
    _drop(root, ("metadata", "style"))
    for element in root.iter():
        _entitle(element, titles or {})
    used = set(re.findall(r"#([\w-]+)", ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        _restyle(element, used)
    for element in root.iter("g"):
        _gather(element)
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "width": width,
        "height": height,
        "role": "img",
        "aria-label": label,
        "class": f"plot {name.partition('.')[0]}",
    }
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def _drop(root: ElementTree.Element, names: Sequence[str]) -> None:
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.removeprefix(_SVG) in names:
                parent.remove(child)


def _entitle(element: ElementTree.Element, titles: Titles) -> None:
    """Give the markers of an artist their tooltips."""
    texts = titles.get(element.get("id", ""), ())
    if texts:
        for mark, text in zip(element.iter(f"{_SVG}use"), texts, strict=True):
            ElementTree.SubElement(mark, f"{_SVG}title").text = text


def _restyle(element: ElementTree.Element, used: set[str]) -> None:
    """Make an element the page's: no namespaces, short numbers, the page's colours and font, only ids that count."""
    element.tag = element.tag.removeprefix(_SVG)
    element.text, element.tail = (text.strip() if text else None for text in (element.text, element.tail))
    attributes = element.attrib
    if _LINK in attributes:
        attributes["href"] = attributes.pop(_LINK)
    name = attributes.get("id")
    if name is not None and name not in used:
        del attributes["id"]
        if name.startswith("halo"):
            attributes["class"] = "halo"
    if "style" in attributes:
        style = _FAMILY.sub("", _COLOUR.sub(_variable, attributes["style"]))
        attributes["style"] = style.replace(": ", ":").replace("; ", ";").rstrip(";")
    for key in ("d", "x", "y", "width", "height", "transform"):
        if key in attributes:
            attributes[key] = _NUMBER.sub(_short, attributes[key]).replace("\n", "").strip()
    if _STILL.fullmatch(attributes.get("transform", "")):
        del attributes["transform"]


def _gather(group: ElementTree.Element) -> None:
    """Let markers that look alike say so once."""
    looks = {mark.get("style") for mark in group}
    if len(group) > 1 and len(looks) == 1 and all(mark.tag == "use" for mark in group) and "style" not in group.attrib:
        group.set("style", looks.pop() or "")
        for mark in group:
            del mark.attrib["style"]


def _variable(match: re.Match[str]) -> str:
    return f"var(--{NAMES[match[0].lower()]})"


def _short(match: re.Match[str]) -> str:
    text = f"{float(match[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def plain_axis(axis: Any, write: Callable[[float], str], ticks: int, whole: bool = False) -> None:
    """Give an axis a few round ticks, written by a function of ours: matplotlib's own differ by scale.

    Args:
        axis: of `Axes`.
        write: writes a tick's value.
        ticks: how many there are at most.
        whole: only at whole numbers.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        subs = (1.0, 2.0, 5.0) if high / low < 30 else (1.0,)
        axis.set_major_locator(LogLocator(subs=subs, numticks=20))
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
