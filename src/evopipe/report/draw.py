"""Drawing with matplotlib, as SVG text that fits the page: its fonts, and its colours in light and dark mode.

Figures are drawn in the light colours of `page.css`. Each colour then becomes its CSS variable, such as `var(--elite)`,
which the page also defines for dark mode. Any other colour is an error. One unit of a figure is one CSS pixel.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from xml.etree import ElementTree

from markupsafe import Markup

_Points: TypeAlias = Sequence[tuple[float, float]]
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
    "text.parse_math": False,  # names are the run's, and a dollar is a dollar
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
    """Set matplotlib's style to the report's inside a `with` block, whatever the user's own settings are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)  # type: ignore[arg-type]  # its keys are a literal type
        yield


class Plot:
    """One figure with one pair of axes, measured in pixels, that is exported as SVG. Colours are names in `PALETTE`.

    Args:
        name: a prefix of ids in the SVG, different for every figure.
        width, height: the figure's size.
        margins: the space left, right, above and below the axes.
        head: the title of the vertical axis, written above the axis.
    """

    def __init__(
        self, name: str, width: float, height: float, margins: tuple[float, float, float, float], head: str = ""
    ) -> None:
        from matplotlib.figure import Figure

        left, right, top, bottom = margins
        self.name, self.figure = name, Figure(figsize=(width / 72, height / 72))
        self._titles: dict[str, Sequence[str]] = {}
        self.figure.patch.set_visible(False)
        self.axes = self.figure.add_axes(
            (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
        )
        if head:
            self.note(head, (0, 1), (8 - left, 14), "muted", "axes fraction", fontsize=11.5)

    def line(self, points: _Points, colour: str, width: float, **look: Any) -> None:
        """Draw a line through points (x, y), with gaps where a point is NaN.

        `colour` is a name in the palette, `width` the line's width in pixels, and `look` has further keywords of
        matplotlib's `plot`.
        """
        self.axes.plot([x for x, _ in points], [y for _, y in points], color=PALETTE[colour], linewidth=width, **look)

    def marks(
        self, points: _Points, colour: str, marker: str, size: float, titles: Sequence[str] = (), **look: Any
    ) -> None:
        """Draw a borderless marker at each point (x, y).

        Args:
            points: the points.
            colour: a name in the palette.
            marker, size: matplotlib's name of the marker, and its size.
            titles: tooltips, one text for each point; empty for none. Tooltips need the keyword `gid`, an id of the
                group.
            look: further keywords of matplotlib's `plot`.
        """
        if titles:
            self._titles[look["gid"]] = titles
        look = {"linestyle": "none", "markeredgewidth": 0, "marker": marker, "markersize": size, **look}
        self.axes.plot([x for x, _ in points], [y for _, y in points], color=PALETTE[colour], **look)

    def note(
        self, text: str, at: tuple[float, float], shift: tuple[float, float], colour: str, where: Any = "data",
        **look: Any,
    ) -> None:  # fmt: skip
        """Write a text into the figure.

        Args:
            text: the text.
            at: the position, in the coordinate system that `where` names as matplotlib's `xycoords`.
            shift: by how many pixels the text is shifted from the position.
            colour: a name in the palette.
            where: the coordinate system of `at`; `data` is that of the axes.
            look: further keywords of matplotlib's `annotate`.
        """
        self.axes.annotate(
            text, at, xycoords=where, xytext=shift, textcoords="offset points", va="center", color=PALETTE[colour],
            annotation_clip=False, **look,
        )  # fmt: skip

    def beside(self, at: float, edge: int, shift: tuple[float, float], text: str, colour: str, **look: Any) -> None:
        """Write a text beside the axes, at the height `at`, outside their left (`edge` 0) or right (`edge` 1) edge.

        The text is shifted by `shift` pixels. `colour` is a name in the palette, and `look` has further keywords of
        `note`.
        """
        self.note(text, (edge, at), shift, colour, ("axes fraction", "data"), gid="halo-row", **look)

    def ticks(self, axis: Literal["x", "y"], write: Callable[[float], str], most: int, whole: bool = False) -> None:
        """Set at most `most` round ticks on an axis, only at integers if `whole`, with labels that `write` formats.

        The ticks do not use matplotlib's own label formats, because these depend on the scale.
        """
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

        found = self.axes.xaxis if axis == "x" else self.axes.yaxis
        if found.get_scale() == "log":
            low, high = sorted(found.get_view_interval())
            found.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 30 else (1.0,), numticks=20))
            found.set_minor_locator(NullLocator())
        else:
            steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
            found.set_major_locator(MaxNLocator(most, steps=steps, integer=whole))
        found.set_major_formatter(FuncFormatter(lambda value, _: write(value)))

    def svg(self, label: Markup) -> Markup:
        """Return the figure as an `<svg>` element; `label` describes the figure for screen readers.

        Raises:
            KeyError: the figure uses a colour that is not in the palette.
        """
        import matplotlib

        stream = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": self.name}):
            self.figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        root = ElementTree.fromstring(stream.getvalue())
        root.remove(root[0])  # matplotlib's own style, which would hold for the whole page
        used = set(re.findall(r"#([\w-]+)", stream.getvalue().decode()))
        for element in root.iter():
            if texts := self._titles.get(element.get("id", "")):
                for mark, text in zip(element.iter(f"{_SVG}use"), texts, strict=True):
                    ElementTree.SubElement(mark, "title").text = text
            _make_ours(element, used)
        width, height = root.attrib["viewBox"].split()[2:]
        root.attrib = {"viewBox": root.attrib["viewBox"], "width": width, "height": height, "role": "img"}
        root.attrib |= {"aria-label": label.unescape().strip(), "class": f"plot {self.name.partition('.')[0]}"}
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
            short = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.1f}".removesuffix(".0"), value)
            element.set(key, short.replace("\n", ""))
