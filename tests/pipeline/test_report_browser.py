"""The report in a real browser: its plots are there, at a desk and on a phone, by day and by night, without a word."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import NAMES, Browser, find, opened
from evopipe.report.episodes import episodes_page
from evopipe.stages import report
from reports import write_run

REQUIRED = "EVOPIPE_REQUIRE_BROWSER"
SIZES = {"large": (20, 50), "small": (1, 1)}  # members, generations
PLOTS = {"large": {"fitness", "lineage", "mutations", "trajectory", "evaluation", "throughput"}}
PLOTS["small"] = PLOTS["large"] - {"mutations", "trajectory"}

# Every visible plot: its kind, its size on the screen, how many shapes it has, its smallest text in pixels.
MEASURE = """
[...document.querySelectorAll('svg.plot')].filter(svg => svg.checkVisibility()).map(svg => {
  const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
  const shapes = [...svg.querySelectorAll('path, use')].filter(e => e.getBoundingClientRect().width > 0
    || e.getBoundingClientRect().height > 0);
  const texts = [...svg.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize) * scale);
  return {kind: svg.classList[1], width: box.width, height: box.height, shapes: shapes.length,
          smallest: Math.min(...texts), texts: texts.length};
})
"""
# Plots whose text or shapes stick out of their card.
OUTSIDE = """
[...document.querySelectorAll('section')].flatMap(card => {
  const edge = card.getBoundingClientRect();
  return [...card.querySelectorAll('figure svg.plot')].filter(svg => svg.checkVisibility() && !svg.closest('.scroll'))
    .flatMap(svg => [...svg.querySelectorAll('text, use')]).filter(e => {
      const box = e.getBoundingClientRect();
      return box.left < edge.left || box.right > edge.right || box.top < edge.top || box.bottom > edge.bottom;
    }).map(e => `${card.id}: ${e.textContent}`);
})
"""
LUMINANCE = """
(() => {
  const of = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const card = of(getComputedStyle(document.querySelector('section')).backgroundColor);
  const contrast = other => (Math.max(card, other) + 0.05) / (Math.min(card, other) + 0.05);
  const texts = [...document.querySelectorAll('svg.plot text')].filter(t => t.checkVisibility());
  return {card, least: Math.min(...texts.map(t => contrast(of(getComputedStyle(t).fill))))};
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find()
    if program is None:
        assert not os.environ.get(REQUIRED), f"{REQUIRED} is set, and none of {', '.join(NAMES)} is on PATH"
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is on PATH")
    with opened(program) as made:
        yield made


@pytest.fixture(scope="module", params=SIZES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Its size, and the file."""
    folder = tmp_path_factory.mktemp("report")
    params = write_run(folder, *SIZES[request.param], overrides={"evaluate.steps": 60})
    report.run(params, quiet=True, folder=folder)
    return request.param, folder / "reports/report.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.thorough
def test_in_a_browser(browser: Browser, page: tuple[str, Path], width: int, dark: bool) -> None:
    size, file = page
    browser.open(file, width, dark=dark)
    plots = browser.run(MEASURE)
    assert {plot["kind"] for plot in plots} == PLOTS[size]
    for plot in plots:
        assert plot["width"] > 200, plot
        assert plot["height"] > 60, plot
        assert plot["shapes"] >= 2, plot
        assert plot["texts"] >= 3, plot
        assert plot["smallest"] >= 9.5, plot
    assert browser.run("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.run(OUTSIDE) == []
    # The film plays, or its still picture stands there; both are in the file.
    assert browser.run("[...document.images].map(i => i.complete && i.naturalWidth > 100)") == [True]
    light = browser.run(LUMINANCE)
    assert (light["card"] < 0.05) if dark else (light["card"] > 0.9)
    assert light["least"] >= 3.0, "text that cannot be read on its card"
    assert browser.console == []
    assert browser.requests[0] == file.resolve().as_uri()
    assert all(address.startswith("data:") for address in browser.requests[1:])


@pytest.mark.thorough
def test_the_browser_would_notice(browser: Browser, tmp_path: Path) -> None:
    """What the test above finds clean is looked at: requests, the console, overflow, contrast, plots of no size."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><body style='margin:0'><section style='width:300px;background:#fff'><figure>"
        "<svg class='plot odd' width='0' height='0' viewBox='0 0 10 10'></svg>"
        "<svg class='plot out' width='200' height='90' viewBox='0 0 200 90' style='overflow:visible'>"
        "<text x='400' y='20' style='fill:#eee;font-size:5px'>far</text></svg></figure></section>"
        "<div style='width:900px'>wide</div><img src='http://127.0.0.1:9/x.png'>"
        "<script>console.log('talks'); missing()</script>"
    )
    browser.open(bad, 390)
    odd, out = browser.run(MEASURE)
    assert (odd["width"], odd["height"], odd["shapes"]) == (0, 0, 0)
    assert out["smallest"] < 9.5
    assert browser.run("document.documentElement.scrollWidth") > 390
    assert browser.run(OUTSIDE) == [": far"]
    assert browser.run(LUMINANCE)["least"] < 3.0
    assert any("talks" in line for line in browser.console)
    assert any("missing" in line for line in browser.console)
    assert "http://127.0.0.1:9/x.png" in browser.requests


@pytest.mark.thorough
def test_who_wants_no_motion_gets_a_still_picture(browser: Browser, page: tuple[str, Path]) -> None:
    sources = []
    for still in (False, True):
        browser.open(page[1], 1280, still=still)
        sources.append(browser.run("document.images[0].currentSrc.length"))
    assert sources[1] < sources[0]


@pytest.mark.thorough
def test_a_mark_tells_what_it_is(browser: Browser, page: tuple[str, Path]) -> None:
    """Every member of the tree has a tooltip."""
    members, generations = SIZES[page[0]]
    browser.open(page[1], 1280)
    titles = browser.run("[...document.querySelectorAll('#lineage use > title')].map(t => t.textContent)")
    shown = browser.run("document.querySelectorAll('#lineage svg.plot').length")
    assert len(titles) == shown * members * generations
    assert all(title.startswith("generation ") for title in titles)
    assert all("fitness" in title or "diverged" in title for title in titles)


@pytest.mark.thorough
def test_every_fold_opens(browser: Browser, page: tuple[str, Path]) -> None:
    browser.open(page[1], 390)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert browser.run("[...document.querySelectorAll('details')].every(d => d.offsetHeight > 100)")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.console == []


EDGE = """
(() => {
  document.querySelectorAll('details').forEach(d => { d.open = true });
  const area = [...document.querySelectorAll('#lineage .table')].at(-1);
  area.scrollLeft = PLACE * area.scrollWidth;
  area.scrollIntoView({block: 'start', behavior: 'instant'});
  const box = area.getBoundingClientRect();
  return {hidden: area.scrollWidth - area.clientWidth, left: box.left, right: box.right, top: box.top};
})()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_line_of_descent_shows_on_a_phone_that_it_goes_on(
    browser: Browser, page: tuple[str, Path], dark: bool
) -> None:
    """A shadow stands at the edge beyond which there is more, and at no other."""
    browser.open(page[1], 390, dark=dark)
    shadows = []
    for place in (0, 1):
        box = browser.run(EDGE.replace("PLACE", str(place)))
        assert box["hidden"] > 40, "the table fits, and nothing is tested"
        browser.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        shot = Image.open(io.BytesIO(browser.picture())).convert("L")
        row, middle = round(box["top"]) + 3, round((box["left"] + box["right"]) / 2)  # above the first row's text
        paper = shot.getpixel((middle, row))
        edges = (round(box["left"]) + 1, round(box["right"]) - 2)
        shadows.append([abs(shot.getpixel((x, row)) - paper) > 25 for x in edges])
    assert shadows == [[False, True], [True, False]]


WRITTEN = """
[...document.querySelectorAll('.written')].filter(e => e.checkVisibility()).map(e => {
  const style = getComputedStyle(e);
  return {text: e.textContent, style: style.borderBottomStyle, colour: style.borderBottomColor};
})
"""


def episodes() -> list[dict[str, Any]]:
    """Three episodes of a task: a good one, a bad one, and one that failed."""
    made = []
    for i, (reward, counts) in enumerate(((1.0, True), (0.0, True), (0.0, False))):
        row = [{"text": "shown " * 40, "written": False, "step": 0}, {"text": f"said{i}", "written": True, "step": 0}]
        step = {"reward": reward, "action": {"tool": "x" * 300}, "done": True}
        trajectory = {"name": "solver", "reward": reward, "steps": [step], "rows": [row]}
        made.append({
            "id": f"7:{i}", "task": {"question": "y" * 300}, "trajectories": [trajectory], "counts": counts, "info": {},
            "termination_reason": "env_done" if counts else "error", "is_correct": reward > 0, "slot": i, "attempts": 1,
        })  # fmt: skip
    return made


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.thorough
def test_episodes_in_a_browser(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """What was written has its reward's colour, what nothing is learned from a dashed line; nothing sticks out."""
    file = tmp_path / "episodes.html"
    file.write_text(episodes_page("a game", {"Validation": episodes()}))
    browser.open(file, width, dark=dark)
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    good, bad, idle = (each for each in browser.run(WRITTEN) if each["text"].startswith("said"))
    assert (good["style"], bad["style"], idle["style"]) == ("solid", "solid", "dashed")
    assert len({good["colour"], bad["colour"], idle["colour"]}) == 3
    assert browser.run("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert browser.console == []
    assert browser.requests == [file.resolve().as_uri()]


TABLE = """
[...document.querySelectorAll('.episode')].filter(e => e.checkVisibility())
  .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)
  .map(e => e.querySelector('.task').textContent.trim().split(' ')[0])
"""
TOKENS = """
[...document.querySelectorAll('.row i')].map(e => {
  const style = getComputedStyle(e);
  return [e.textContent, style.backgroundColor, style.borderBottomStyle];
})
"""


def valued(uid: str, reward: float, advantages: list[float], ratios: list[float]) -> dict[str, Any]:
    """An episode with a call of a tool, of which each token has its values."""
    tokens = [f"token{i} " for i in range(len(advantages))]
    piece = {
        "text": "".join(tokens), "written": True, "step": 0, "tokens": tokens, "advantage": advantages,
        "log_prob": [-1.0] * len(tokens), "new_log_prob": [ratio - 1.0 for ratio in ratios],
    }  # fmt: skip
    told = {"text": "<script>document.title = 'hostile'</script> told " * 5, "written": False, "step": 0}
    call = {"function": {"name": "search", "arguments": '{"q": "<b>x</b>"}'}}
    out = {"tool_calls": [call], "completion_ids": [1] * len(tokens)}
    step = {"reward": reward, "action": None, "done": True, "model_output": out}
    trajectory = {"name": "solver", "reward": reward, "steps": [step], "rows": [[told, piece, told]]}
    return {
        "id": uid, "task": {"question": "y" * 300}, "trajectories": [trajectory], "counts": True, "info": {},
        "termination_reason": "env_done" if reward else "timeout", "is_correct": reward > 0, "slot": 0, "attempts": 1,
    }  # fmt: skip


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.thorough
def test_the_table_of_episodes_in_a_browser(browser: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    """Its rows are sorted, chosen and unfolded, its tokens coloured, without a script; hostile text does nothing."""
    many = [0.5] * 3000
    every = [
        valued("1:0", 0.0, [-1.0, 0.0, 0.5], [0.0, -0.2, 0.1]), valued("1:1", 1.0, [1.0, 1.0, 0.0], [0.3, 0.0, 0.0]),
        valued("2:0", 0.5, many, many),
    ]  # fmt: skip
    file = tmp_path / "episodes.html"
    file.write_text(episodes_page("a game", {"Rounds": every}))
    browser.open(file, width, dark=dark)

    def press(name: str) -> None:
        browser.run(f"document.getElementById({name!r}).click()")

    assert browser.run(TABLE) == ["1:0", "1:1", "2:0"]
    for order, found in (("best", ["1:1", "2:0", "1:0"]), ("worst", ["1:0", "2:0", "1:1"]),
                         ("longest", ["2:0", "1:0", "1:1"])):  # fmt: skip
        press(f"order-{order}")
        assert browser.run(TABLE) == found
    press("reward-b1")
    assert browser.run(TABLE) == ["2:0"]
    press("kind-cut")
    assert browser.run(TABLE) == []
    browser.run("document.querySelector('.choices').reset()")
    press("kind-cut")
    assert browser.run(TABLE) == ["1:0"]
    browser.run("document.querySelector('.choices').reset()")

    folds = "[...document.querySelectorAll('.call')]"
    assert browser.run(f"{folds}.filter(e => e.open).length") == 0
    assert "search(" in browser.run(f"{folds}[0].querySelector('summary').textContent")
    browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    tokens = browser.run(TOKENS)[-3006:][:6]
    assert [style for _, _, style in tokens] == ["dotted", "none", "solid", "solid", "solid", "none"]
    assert len({colour for _, colour, _ in tokens}) == 4  # far below, nothing, above, far above
    press("by-ratio")
    assert [style for _, _, style in browser.run(TOKENS)[-3006:][:6]] == [
        "none", "dotted", "solid", "solid", "none", "none",
    ]  # fmt: skip
    press("by-reward")
    assert {style for _, _, style in browser.run(TOKENS)[-3006:]} == {"none"}
    assert browser.run("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert "hostile" not in browser.run("document.title")
    assert browser.console == []
    assert browser.requests == [file.resolve().as_uri()]
