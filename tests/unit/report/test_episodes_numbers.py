"""The numbers of the page of episodes, each by hand: its head, its tables, its rows, and what tokens are told."""

from __future__ import annotations

import re
from itertools import count
from typing import Any

import pytest

from evopipe.errors import DataError
from evopipe.report.episodes import (
    _TOKENS,
    Shades,
    _bands,
    _brief,
    _calls,
    _level,
    _lines,
    _numbers,
    episodes_page,
    read_episodes,
)

Episode = dict[str, Any]


def episode(
    uid: str, rewards: dict[str, float | None], steps: int = 1, reason: str = "env_done", right: bool = False,
    slot: int = 0, **more: Any,
) -> Episode:  # fmt: skip
    """Each role has a trajectory of that reward and so many steps."""
    made = [
        {"name": name, "reward": reward, "steps": [{"reward": 0.0, "action": None, "done": False}] * steps, "rows": []}
        for name, reward in rewards.items()
    ]
    return {"id": uid, "slot": slot, "task": "t", "trajectories": made, "termination_reason": reason, "info": {},
            "is_correct": right, **more}  # fmt: skip


def cells(page: str, caption: str) -> list[list[str]]:
    table = page.partition(f"<caption>{caption}</caption>")[2].partition("</table>")[0].partition("<tbody>")[2]
    return [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)]


def test_the_head_and_the_tables_are_of_all_episodes_shown_or_not() -> None:
    many = [episode(f"{i}:0", {"solver": 1.0}, right=i % 2 == 0) for i in range(203)]  # the last three are not shown
    many[202] = episode("202:0", {"solver": -5.0, "judge": 9.0}, 4, "timeout", right=True)
    other = [
        episode("0:0", {"solver": None}, 3, "error"), episode("0:1", {}, reason="error", right=True),
        episode("1:0", {"solver": 4.0, "judge": 2.0}, 2, "error"),
    ]  # fmt: skip
    page = episodes_page("x", {"Rounds": many, "Elite": other})
    head = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))
    # 202 · 1, (−5 + 9) / 2, 0, 0, (4 + 2) / 2
    assert head == {
        "mean reward": f"{(202 + 2 + 3) / 206:.4g}", "episodes": "206", "right": "103", "rewards": "0.0 to 3.0",
    }  # fmt: skip
    assert cells(page, "Reasons of termination") == [
        ["env_done", "202", "1.0"], ["error", "3", "1.0"], ["timeout", "1", "2.0"],
    ]  # fmt: skip
    steps = (202 + 4 + 3 + 2) / 205
    assert cells(page, "Roles") == [
        ["judge", "2", "5.5", "3.0"],
        ["solver", "205", f"{(202 - 5 + 0 + 4) / 205:.4g}", f"{steps:.4g}"],
    ]
    assert "3 episodes more are in the files" in page
    assert page.count("episodes more") == 1
    assert page.count('<details class="episode') == 203


def test_rewards_are_alike_within_a_members_task_and_role() -> None:
    def alike(*episodes: Episode) -> list[bool]:
        page = episodes_page("x", {"Rounds": episodes})
        rows = re.findall(r"<summary>(.*?)</summary>", page, re.DOTALL)
        return ["rewards alike" in row for row in rows if 'class="task"' in row]

    both = {"solver": 1.0, "judge": 2.0}
    assert alike(episode("0:0", both), episode("0:1", both)) == [True, True]
    assert alike(episode("0:0", both), episode("0:1", {"solver": 1.0, "judge": 3.0})) == [False, False]
    assert alike(episode("0:0", both), episode("1:0", both)) == [False, False], "one alone is compared with nothing"
    others = [episode(f"0:{i}", {"a": float(i)}, slot=1) for i in range(2)]
    assert alike(episode("0:0", both), episode("0:1", both), *others) == [True, True, False, False]
    assert alike(episode("0:0", {"a": None}), episode("0:1", {"a": 0.0})) == [True, True]
    assert alike(episode("0:0", both, counts=False), episode("0:1", both)) == [False, True]


def piece(advantage: list[float | None], old: list[float | None], new: list[float | None], step: int = 0) -> Any:
    texts = [chr(97 + i) for i in range(len(advantage))]
    return {
        "text": "".join(texts), "tokens": texts, "advantage": advantage, "log_prob": old, "new_log_prob": new,
        "written": True, "step": step,
    }  # fmt: skip


def test_tokens_are_told_by_the_largest_of_the_page() -> None:
    first = piece([0.5, -2.0, None], [-1.0, -3.0, None], [-0.75, -3.5, -1.0])
    second = piece([0.0, 1.0], [-1.0, None], [-1.0, -1.0])
    one, two = episode("0:0", {"a": 1.0}), episode("0:1", {"a": 0.0})
    one["trajectories"][0]["rows"], two["trajectories"][0]["rows"] = [[first]], [[second]]
    shades = Shades.of([one, two])
    assert (shades.advantage, shades.ratio, shades.any) == (2.0, 0.5, True)
    assert shades.summed([[first]]) == "mean advantage −0.75; log-probability ratios from −0.5 to +0.25"
    assert shades.summed([[first], [second]]) == "mean advantage −0.125; log-probability ratios from −0.5 to +0.25"
    assert shades.summed([[{"text": "x"}]]) == ""
    marked = str(shades.marked(first))
    assert re.findall(r'<i class="([^"]*)" title="([^"]*)">(.)</i>', marked) == [
        ("a6 r7", "advantage +0.5, log-probability −1.0, then −0.75: ratio 1.284", "a"),
        ("a0 r0", "advantage −2.0, log-probability −3.0, then −3.5: ratio 0.6065", "b"),
        ("a5 r5", "advantage –, log-probability –", "c"),
    ]
    assert re.findall(r'<i class="([^"]*)"', str(shades.marked(second))) == ["a5 r5", "a7 r5"]
    assert "".join(re.findall(r">(.)<", marked)) == "abc"
    empty = Shades.of([])
    assert (empty.advantage, empty.ratio, empty.any) == (0.0, 0.0, False)
    assert Shades.of([{"trajectories": [{"rows": [[piece([0.0], [-1.0], [-0.5])]]}]}]).any


@pytest.mark.parametrize(
    ("value", "shade"),
    [
        (0.0, 5),
        (1e-9, 6),
        (-1e-9, 4),
        (10.0, 10),
        (-10.0, 0),
        (4.9, 7),
        (5.1, 8),
        (-5.1, 2),
        (None, 5),
        (float("nan"), 5),
    ],
)
def test_shades_go_to_five_on_either_side(value: float | None, shade: int) -> None:
    assert _level(value, 10.0) == shade
    assert _level(value, 0.0) == 5


def test_a_tokens_ratio_is_bounded_where_it_would_not_be_a_number() -> None:
    assert _numbers(None, -800.0, 799.0).startswith("advantage –, log-probability −800.0, then −1.0: ratio 5.185e21")
    assert _numbers(1.0, None, None) == "advantage +1.0, log-probability –"


def test_a_step_shows_its_calls_else_the_tool_of_its_action() -> None:
    calls = [{"function": {"name": "add", "arguments": '{"a": 1}'}}, "no", {"function": {"name": "stop"}}]
    action = {"tool": "look", "input": 7}
    assert _calls({"model_output": {"tool_calls": calls}, "action": action}) == 'add({"a": 1}), stop()'
    assert _calls({"model_output": {"tool_calls": []}, "action": action}) == "look(7)"
    assert _calls({"model_output": None, "action": {"tool": 3}}) == ""
    assert _calls({"action": "look"}) == ""
    assert len(_calls({"action": {"tool": "x" * 99}})) == 70


def test_long_texts_are_cut_and_say_by_how_much() -> None:
    assert _brief("x" * 160) == "x" * 160
    assert _brief("x" * 161) == "x" * 159 + "…"
    assert _brief({"ä": 1}) == '{"ä": 1}'
    assert _lines("ab\ncd", 5) == "ab\ncd"
    assert _lines("ab\ncde", 5) == "ab\ncd … (1 characters more)"
    assert _lines("a<b") == "a&lt;b"


def test_rewards_stand_between_the_lowest_and_the_highest_of_the_page() -> None:
    page = episodes_page("x", {"A": [episode("0:0", {"a": -1.0})], "B": [episode("1:0", {"a": 3.0}),
                                                                        episode("2:0", {"a": 0.0})]})  # fmt: skip
    shares = re.findall(r"<summary><span><b class=\"chip\" style=\"--share:(\d+)%\">([^<]*)</b>", page)
    assert shares == [("0", "−1.0"), ("100", "3.0"), ("25", "0.0")]
    one = episodes_page("x", {"A": [episode("0:0", {"a": 2.0})]})
    assert '<summary><span><b class="chip" style="--share:50%">2.0</b>' in one
    turns = re.findall(
        r"<span>(\d+)<small> turns?</small>", episodes_page("x", {"A": [episode("0:0", {"a": 1.0, "b": 1.0}, 3)]})
    )
    assert turns == ["6"]


def test_files_may_have_empty_lines_and_count_them(tmp_path: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"id": "1:0", "trajectories": []}\n\n{"id": "2:0", "trajectories": [1]}\n')
    assert [each["id"] for each in read_episodes(path)] == ["1:0", "2:0"]


@pytest.mark.parametrize(
    "line", ['{"id": 1, "trajectories": []}', '{"id": "1"}', '{"id": "1", "trajectories": {}}', "[]", "{"]
)
def test_a_line_that_is_no_episode_is_named(line: str, tmp_path: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"id": "1:0", "trajectories": []}}\n\n{line}\n')
    with pytest.raises(DataError, match=r"a\.jsonl:3: is no episode as `episodes/` has them"):
        read_episodes(path)


def test_beyond_its_budget_a_page_colours_no_token() -> None:
    """Across its pieces; the text is there all the same."""
    shades, told = Shades(1.0, 1.0, count(_TOKENS - 3)), piece([0.5, 1.0], [-1.0, -1.0], [-1.0, -1.0])
    assert str(shades.marked(told)).count("<i ") == 2
    marked = str(shades.marked(told))
    assert (marked.count("<i "), re.sub(r"<[^>]*>", "", marked)) == (1, "ab")
    assert str(shades.marked(told)) == "ab"


def test_ranges_of_rewards_are_the_rewards_where_they_are_few_and_else_five_as_wide_from_the_least_to_the_most() -> (
    None
):
    assert _bands([3.0, -1.0, 3.0]) == [(-1.0, -1.0), (3.0, 3.0)]
    assert _bands([float(x) for x in (9, 0, 1, 2, 10, 5)]) == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
