"""Drawing with matplotlib, as SVG text that belongs to the page: its fonts, its colours by day and by night.

Figures are drawn in the colours that `page.css` has for the light; afterwards each becomes its CSS variable,
`var(--elite)`, which the page also has for the dark. Another colour is an error. One unit of a figure is one CSS pixel.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DAY = Path(__file__).with_name("page.css").read_text(encoding="utf-8").partition("@media")[0]
PALETTE = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", _DAY))
"""The page's colours in the light, by name."""

_SVG = "{http://www.w3.org/2000/svg}"
_NAMES = {colour: name for name, colour in PALETTE.items()}
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # matplotlib brings it, so that every machine lays out alike; the page sets another
    "font.size": 12,
    "text.color": PALETTE["ink"],
    "axes.labelcolor": PALETTE["muted"],
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 1.0,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "path.simplify": False,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top", "bottom")},
    **{f"{axis}tick.labelcolor": PALETTE["muted"] for axis in "xy"},
    **{f"{axis}tick.{kind}.size": 0 for axis in "xy" for kind in ("major", "minor")},
    **{f"{axis}tick.major.pad": 7 for axis in "xy"},
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


def line(axes: Axes, points: Sequence[tuple[float, float]], colour: str, width: float, **look: Any) -> None:
    """Draw a line through points; it breaks at a NaN."""
    axes.plot(*_columns(points), color=PALETTE[colour], linewidth=width, **look)


def marks(
    axes: Axes, points: Sequence[tuple[float, float]], colour: str, marker: str, size: float, **look: Any
) -> None:
    """Draw a mark at each point, without an edge."""
    look = {"color": PALETTE[colour], "linestyle": "none", "markeredgewidth": 0, **look}
    axes.plot(*_columns(points), marker=marker, markersize=size, **look)


def note(
    axes: Axes, text: str, at: tuple[float, float], shift: tuple[float, float], colour: str, where: Any = "data",
    **look: Any,
) -> None:  # fmt: skip
    """Write a text at a place of the axes (`where`: in which coordinates), shifted by some pixels."""
    axes.annotate(
        text, at, xycoords=where, xytext=shift, textcoords="offset points", va="center", color=PALETTE[colour],
        annotation_clip=False, **look,
    )  # fmt: skip


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def svg(figure: Figure, name: str, label: Markup, titles: Mapping[str, Sequence[str]] | None = None) -> Markup:
    """Return a drawn figure as an `<svg>` element.

    Args:
        figure: what was drawn, under `style`.
        name: its name on the page; it keeps the ids of different figures apart.
        label: what it shows.
        titles: by the gid of an artist, the tooltips of its markers, in order.

    Raises:
        KeyError: something has a colour that is not in the palette.
    """
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    root = ElementTree.fromstring(stream.getvalue())
    root.remove(root[0])  # matplotlib's own style, which would hold for the whole page
    used = set(re.findall(r"#([\w-]+)", stream.getvalue().decode()))
    for element in root.iter():
        if texts := (titles or {}).get(element.get("id", "")):
            for mark, text in zip(element.iter(f"{_SVG}use"), texts, strict=True):
                ElementTree.SubElement(mark, "title").text = text
        _make_ours(element, used)
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib = {"viewBox": root.attrib["viewBox"], "width": width, "height": height, "role": "img"}
    root.attrib |= {"aria-label": label.unescape().strip(), "class": f"plot {name.partition('.')[0]}"}
    return Markup(ElementTree.tostring(root, encoding="unicode").replace(" />", "/>"))


def _make_ours(element: ElementTree.Element, used: set[str]) -> None:
    """Make an element the page's: no namespaces, short numbers, the page's colours and font, only ids that count."""
    element.tag = element.tag.removeprefix(_SVG)
    element.text, element.tail = ((text or "").strip() for text in (element.text, element.tail))
    element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    for key, value in list(element.attrib.items()):
        if key == "id" and value not in used:
            del element.attrib["id"]
            if value.startswith("halo"):
                element.set("class", "halo")
        elif key == "style":
            coloured = re.sub(r"#[0-9a-fA-F]{6}\b", lambda found: f"var(--{_NAMES[found[0].lower()]})", value)
            element.set("style", re.sub(r"font-family: [^;]*;? ?", "", coloured).replace("; ", ";").rstrip(";"))
        elif key in ("d", "x", "y", "width", "height", "transform"):
            element.set(key, re.sub(r"-?\d+\.\d+", _short, value).replace("\n", ""))


def _short(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def ticks(axis: Any, write: Callable[[float], str], most: int, whole: bool = False) -> None:
    """Give an axis a few round ticks, written by a function of ours: matplotlib's own differ by scale.

    Args:
        axis: of `Axes`.
        write: writes a tick's value.
        most: how many there are at most.
        whole: only at whole numbers.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 30 else (1.0,), numticks=20))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10], integer=whole))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
