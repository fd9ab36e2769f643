"""The explorer in a real browser, on a real run: clicks, keys, numbers, weights, filters, the export."""

import functools
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser, Page, expect

from lark.explorer.api import respond
from lark.explorer.context import Context
from lark.explorer.export import export
from lark.scoring.tokens import read_trajectories
from lark.selection.rules import select
from tests.explorer.browser import NONE, Tab, executable, tab
from tests.explorer.conftest import Server

pytestmark = pytest.mark.skipif(executable() is None, reason=NONE)


@pytest.fixture
def at(browser: Browser, server: Server) -> Iterator[Tab]:
    """A tab that has been let in. It must not have complained, nor asked any other server, when the test
    ends.
    """
    with tab(browser) as opened:
        opened.open(server.url)
        yield opened
        assert opened.errors == [] and opened.dialogs == []
        assert opened.foreign(server.base) == []


def test_by_clicks_from_the_overview_to_a_question_a_comparison_and_an_answer(
    at: Tab, server: Server
) -> None:
    page = at.page
    expect(page).to_have_url(server.base)  # the token has left the address
    expect(page.get_by_role("heading", name="Results")).to_be_visible()
    page.get_by_role("link", name="Pool", exact=True).click()
    page.get_by_role("table", name="Questions").locator("tbody tr").nth(2).click()
    expect(page.locator("h1")).to_have_text(re.compile("Question demo-"))
    rows = page.locator("table.candidates tbody tr")
    expect(rows).to_have_count(33)
    rows.nth(0).get_by_role("button").click()
    page.locator("table.candidates tbody tr").nth(5).get_by_role("button").click()
    page.get_by_role("link", name="Compare them").click()
    expect(page.locator(".tokens")).to_have_count(2)
    page.locator(".tokens").nth(1).locator("[data-i='3']").first.hover()
    expect(page.locator(".token-tip")).to_be_visible()
    page.get_by_role("link", name="Answers", exact=True).click()
    page.get_by_role("table", name="Problems").locator("tbody tr").nth(1).click()
    expect(page.locator(".sides > section")).to_have_count(2)
    page.locator("details.sample summary").first.click()
    expect(page.locator("details.sample .prose").first).not_to_have_text("Loading…")
    page.go_back()
    expect(page.get_by_role("table", name="Problems")).to_be_visible()
    compared = re.compile(r"#/compare/\w+/\w+/2/")
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page).to_have_url(compared)  # the pair that was looked at last


def test_the_tab_of_comparisons_opens_two_candidates_whose_tokens_were_kept(at: Tab) -> None:
    page = at.page
    page.get_by_role("link", name="Compare", exact=True).click()
    expect(page).to_have_url(re.compile(r"#/compare/\w+/\w+/\d+/0/1$"))
    expect(page.locator(".tokens")).to_have_count(2)
    expect(page.locator("nav a[aria-current='page']")).to_have_text("Compare")


@pytest.mark.parametrize("width", [1280, 400])
def test_a_table_that_is_too_wide_says_so_and_scrolls(
    browser: Browser, server: Server, pool: str, view: str, width: int
) -> None:
    with tab(browser, width=width) as opened:
        opened.open(server.url)
        opened.open(f"{server.base}#/question/{pool}/{view}/2")
        frame = opened.page.locator(".scroll-frame:has(table.candidates)")
        last = frame.locator("thead th").last
        button = frame.locator(".more-columns")
        expect(last).not_to_be_in_viewport()
        expect(button).to_have_text(re.compile(r"^\d+ more columns? ›$"))
        while (button.inner_text()) != "‹ back":
            button.click()
            opened.page.wait_for_timeout(400)  # it scrolls smoothly
        expect(last).to_be_in_viewport()
        button.click()
        expect(button).to_have_text(re.compile("more"))


def test_a_method_has_one_colour_in_the_table_of_teachers(
    at: Tab, server: Server, pool: str, view: str
) -> None:
    at.open(f"{server.base}#/pool/{pool}/{view}")
    rows = at.page.get_by_role("table", name="Teachers").locator("tbody tr")
    at.page.get_by_role("button", name="B = 1", exact=True).click()  # of five methods
    expect(rows.first.locator(".share-cell i")).to_have_count(5)
    colours = rows.evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('.share-cell i')].map((i) => i.style.background))"
    )
    assert len(colours) > 5 and len(colours[0]) == 5
    assert all(row == colours[0] for row in colours)
    assert len(set(colours[0])) >= 4  # a method without a colour of its own may have that of another


def test_by_keys_from_the_overview_to_a_question_a_comparison_and_an_answer(at: Tab) -> None:
    page = at.page
    press = page.keyboard.press
    for key in ("g", "p"):
        press(key)
    expect(page.get_by_role("table", name="Questions").locator("tbody tr")).to_have_count(6)
    for key in ("j", "j", "k", "j", "Enter"):
        press(key)
    expect(page.locator("h1")).to_have_text("Question demo-00001")
    for key in ("j", "x", "j", "j", "x"):
        press(key)
    expect(page.locator(".compare-bar")).to_be_visible()
    press("c")
    expect(page.locator(".tokens").first).to_be_focused()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
        press(key)
    expect(page.locator(".token-tip")).to_have_attribute("data-token", "2")
    press("h")
    expect(page.get_by_role("button", name="Residual")).to_have_attribute("aria-pressed", "true")
    press("o")
    expect(page.locator(".tokens").nth(1)).to_be_focused()
    press("Escape")
    expect(page.locator("table.candidates")).to_be_visible()
    expect(page.locator(".compare-bar")).to_be_visible()  # the marks are kept
    press("]")
    expect(page.locator("h1")).to_have_text("Question demo-00002")
    for key in ("g", "a"):
        press(key)
    expect(page.get_by_role("table", name="Problems")).to_be_visible()
    for key in ("j", "Enter"):
        press(key)
    expect(page.locator("h1")).to_have_text(re.compile("Problem demo_words-00"))
    press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_search_box_is_reached_by_slash_and_left_by_escape(
    at: Tab, server: Server, pool: str, view: str
) -> None:
    at.open(f"{server.base}#/pool/{pool}/{view}")
    page = at.page
    page.keyboard.press("/")
    box = page.get_by_placeholder("Search questions")
    expect(box).to_be_focused()
    page.keyboard.type("demo-00004")
    rows = page.get_by_role("table", name="Questions").locator("tbody tr")
    expect(rows).to_have_count(1)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Question demo-00004")
    page.go_back()
    expect(box).to_have_value("demo-00004")  # the state is in the address
    expect(rows).to_have_count(1)


def test_the_skip_link_is_the_first_stop_and_the_focus_is_visible(at: Tab) -> None:
    page = at.page
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def numbers(page: Page) -> dict[str, float]:
    """What the tooltip of a token shows."""
    found = {}
    for cell in page.locator(".token-tip dd").all():
        text = cell.inner_text().replace("−", "-").replace(",", "").replace(" nats", "").removeprefix("≥ ")
        found[cell.get_attribute("data-measure") or ""] = float(text)
    return found


def test_hovering_shows_the_numbers_of_the_artifact(
    at: Tab, server: Server, store: Path, context: Context, pool: str, view: str
) -> None:
    question = respond(context, f"question/{pool}/{view}/4", {})[1]
    stored = {
        row.candidate_id: row for row in read_trajectories(next((store / "tokens").iterdir()), question["id"])
    }
    at.open(f"{server.base}#/compare/{pool}/{view}/4/2/20")
    page = at.page
    for side, c in enumerate((2, 20)):
        kept = stored[question["candidates"][c]["id"]]
        for i in (0, 5, len(kept) // 2, len(kept) - 1):
            page.locator(".tokens").nth(side).locator(f"[data-i='{i}']").first.hover()
            expect(page.locator(".token-tip")).to_have_attribute("data-token", str(i))
            shown = numbers(page)
            expected = {
                "surprisal": kept.surprisal[i], "residual": kept.residual[i], "rank": kept.rank[i],
                "probability": np.exp(-kept.surprisal[i]), "entropy": kept.entropy[i],
            }  # fmt: skip
            for name, value in expected.items():
                assert shown[name] == pytest.approx(float(value), rel=6e-4, abs=6e-5), (name, i)
            expect(page.locator(".alternatives > .alternative")).to_have_count(
                int((kept.alternatives[i] >= 0).sum())
            )
            first = (
                page.locator(".alternatives > .alternative")
                .first.locator(".num")
                .inner_text()
                .replace("−", "-")
            )
            assert float(first) == pytest.approx(float(kept.alternative_p[i][0]), rel=6e-3)


def test_the_colours_of_tokens_follow_the_measure(
    at: Tab, server: Server, pool: str, view: str, store: Path, context: Context
) -> None:
    at.open(f"{server.base}#/compare/{pool}/{view}/0/1/2?heat=residual")
    page = at.page
    question = respond(context, f"question/{pool}/{view}/0", {})[1]
    stored = {
        row.candidate_id: row for row in read_trajectories(next((store / "tokens").iterdir()), question["id"])
    }
    kept = stored[question["candidates"][1]["id"]]
    for i in range(0, len(kept), 3):
        level = page.locator(".tokens").first.locator(f"[data-i='{i}']").first.get_attribute("class") or ""
        assert level.split()[0] == f"h{int(np.floor(min(1, float(kept.residual[i]) / 2) * 23 + 0.5))}"
    page.get_by_role("button", name="Probability").click()
    expect(page).to_have_url(re.compile("heat=probability"))
    expect(page.locator(".heat-legend")).to_contain_text("dark is unlikely")


JS_SELECT = """async ([cases]) => {
  const { select } = await import("/static/js/select.js");
  return cases.map(([scores, place, budget, weighting, higher]) => {
    const r = select(scores, place, budget, weighting, higher);
    return { chosen: r.chosen, weight: r.weight, threshold: r.threshold, tau: r.tau };
  });
}"""


def cases() -> list[tuple[np.ndarray, list[str], int, str, bool]]:
    """Scores with and without ties and missing values, all budgets up to more than K, all weightings, both
    directions.
    """
    rng = np.random.default_rng(5)
    found = []
    for trial in range(60):
        K = int(rng.integers(1, 34))
        score = rng.normal(size=K) if trial % 3 else rng.integers(0, 3, K).astype(float)
        if trial % 4 == 0:
            score[rng.random(K) < 0.3] = np.nan
        if not np.isfinite(score).any():
            continue
        names = [f"t{rng.integers(0, 99):02d}.{i}" for i in range(K)]
        for weighting in ("chi2", "kl", "softmax", "proportional", "uniform"):
            found.append((score, names, int(rng.integers(1, K + 3)), weighting, bool(trial % 2)))
    return found


def test_weights_in_the_browser_are_those_of_select_to_the_last_bit(at: Tab) -> None:
    made = cases()
    asked = []
    for score, names, budget, weighting, higher in made:
        place = np.argsort(np.argsort(names)).tolist()
        asked.append([[None if np.isnan(v) else v for v in score.tolist()], place, budget, weighting, higher])
    found = at.page.evaluate(JS_SELECT, [asked])
    for (score, names, budget, weighting, higher), ours in zip(made, found, strict=True):
        expected = select(score, ["q"] * len(score), names, budget, weighting, higher_is_better=higher)
        assert ours["chosen"] == expected.row.tolist()
        if weighting in ("chi2", "uniform", "proportional"):
            assert ours["weight"] == expected.weight.tolist()
        else:
            assert ours["weight"] == pytest.approx(expected.weight.tolist(), rel=1e-12)
        for name in ("threshold", "tau"):
            value = getattr(expected, name)[0]
            assert ours[name] == (None if np.isnan(value) else value)


def shown_weights(page: Page) -> dict[str, float]:
    """The weight of each candidate that the table marks as chosen, with all digits."""
    rows = page.locator("table.candidates tbody tr:has(.weight)")
    return {
        row.locator(".who a").inner_text(): float(
            (row.locator(".weight").get_attribute("title") or "").split("= ")[1]
        )
        for row in rows.all()
    }


def test_the_slider_gives_the_weights_of_real_selections(
    at: Tab, server: Server, store: Path, pool: str, view: str
) -> None:
    """Also with ties (rule_quality), and with a budget that takes all candidates (B = 40)."""
    at.open(f"{server.base}#/question/{pool}/{view}/3")
    page = at.page
    menu = page.get_by_label("Selection")
    for option in [o.get_attribute("value") for o in menu.locator("option").all()][1:]:
        menu.select_option(option)
        stored = pd.read_parquet(next((store / "selection").glob(f"*-{option}")) / "selection.parquet")
        mine = stored[stored["question_id"] == "demo-00003"]
        assert shown_weights(page) == dict(zip(mine["candidate_id"], mine["weight"], strict=True))
        expect(page.locator("#budget")).to_have_value(str(len(mine)))
    menu.select_option(label="LARK, B = 1, chi2")
    slider = page.locator("#budget")
    slider.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(slider).to_have_value("3")
    stored = pd.read_parquet(next((store / "selection").glob("*-lark-chi2-B3-*")) / "selection.parquet")
    mine = stored[stored["question_id"] == "demo-00003"]
    assert shown_weights(page) == dict(zip(mine["candidate_id"], mine["weight"], strict=True))
    expect(page.locator(".chart")).to_contain_text("τ*(B)")
    expect(page).to_have_url(re.compile("B=3"))


def test_filters_and_search_of_answers(at: Tab, server: Server, context: Context) -> None:
    at.open(f"{server.base}#/answers")
    page = at.page
    (benchmark,) = respond(context, "benchmarks", {})[1]["benchmarks"]
    where = "/".join([benchmark["group"], *(model["id"] for model in benchmark["models"])])
    rows = page.get_by_role("table", name="Problems").locator("tbody tr:not(:has(.empty))")
    names = {
        "fixed": "fixed",
        "broken": "broken",
        "unsolved": "unsolved",
        "disagree": "graders disagree",
        "truncated": "truncated",
        "unboxed": "no box",
    }
    for flag, label in names.items():
        expected = respond(context, f"problems/{where}/paper", {"flags": flag})[1]
        chip = page.get_by_role("group", name="Filters").get_by_role("button", name=re.compile(f"^{label}"))
        if expected["found"] == 0:
            expect(chip).to_have_count(0)
            continue
        chip.click()
        expect(rows).to_have_count(expected["found"])
        assert [row.locator("code").first.inner_text() for row in rows.all()] == [
            row["id"] for row in expected["rows"]
        ]
        chip.click()
        expect(rows).to_have_count(6)
    page.get_by_placeholder(re.compile("Search problems")).fill("words-03")
    expect(rows).to_have_count(1)


def test_light_and_dark(browser: Browser, server: Server) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with tab(browser, theme="dark") as dark, tab(browser, theme="light") as light:
        for opened in (dark, light):
            opened.open(server.url)
        first, second = dark.page.evaluate(background), light.page.evaluate(background)
        assert first != second
        light.page.get_by_role("button", name="Light or dark").click()
        assert light.page.evaluate(background) == first
        light.page.reload()
        assert light.page.evaluate(background) == first  # the choice is kept


LOOKS = Path(__file__).with_name("looks.js").read_text(encoding="utf-8").split("\n", 1)[1].rstrip()
PAGES = [
    "",
    "#/pool/{where}",
    "#/question/{where}/2?a=1&b=4",
    "#/compare/{where}/2/1/4",
    "#/compare/{where}/2/1/4?show=text",
    "#/methods/{where}",
    "#/answers",
    "#/artifact/pool/{pool}",
]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (400, "dark")])
def test_nothing_is_cut_off_or_hard_to_read(
    browser: Browser, server: Server, pool: str, view: str, context: Context, width: int, theme: str
) -> None:
    """No page is wider than the window, no text ends outside its box, and all texts have the contrast that
    WCAG asks for.
    """
    (benchmark,) = respond(context, "benchmarks", {})[1]["benchmarks"]
    problem = "/".join([benchmark["group"], *(model["id"] for model in benchmark["models"]), "1"])
    with tab(browser, width=width, theme=theme) as opened:
        opened.open(server.url)
        for page in [*PAGES, f"#/problem/{problem}"]:
            opened.open(server.base + page.format(where=f"{pool}/{view}", pool=pool))
            assert opened.page.evaluate("document.documentElement.scrollWidth") <= width, page
            assert opened.page.evaluate(f"{LOOKS}.cutOff()") == [], page
            assert opened.page.evaluate(f"{LOOKS}.contrast()") == [], page
        assert opened.errors == []


def test_a_row_says_why_it_was_chosen(
    at: Tab, server: Server, context: Context, pool: str, view: str
) -> None:
    """The parts of LARK's score that the page shows multiply to the score of the method."""
    question = respond(context, f"question/{pool}/{view}/3", {})[1]
    at.open(f"{server.base}#/question/{pool}/{view}/3?m=lark&B=3&w=chi2")
    page = at.page
    found = page.evaluate(
        """async (candidates) => {
          const { learnability } = await import("/static/js/why.js");
          return candidates.map((_, i) => learnability(candidates, i).score);
        }""",
        question["candidates"],
    )
    assert found == pytest.approx(question["scores"]["lark"], rel=1e-9)
    order = np.argsort(question["ranks"]["lark"])
    names = [question["candidates"][i]["id"] for i in order]
    why = page.get_by_role("region", name="Explanation")
    expect(why).to_contain_text(f"Why {names[0]}?")
    expect(why).to_contain_text("1st of 33 by LARK; the budget takes 3.")
    for _ in range(4):
        page.keyboard.press("j")
    expect(why).to_contain_text(f"Why not {names[3]}?")
    expect(why).to_contain_text("It is the best one left out")
    page.locator(".chart .pick[data-c] rect").last.hover()  # the best one
    expect(page.locator(".tooltip")).to_contain_text(f"{names[0]}: score")
    page.get_by_label("Method", exact=True).select_option("rsr")
    expect(why).to_contain_text("rank-surprisal ratio")


def test_a_comparison_shows_what_each_method_thinks(
    at: Tab, server: Server, context: Context, pool: str, view: str
) -> None:
    question = respond(context, f"question/{pool}/{view}/3", {})[1]
    at.open(f"{server.base}#/compare/{pool}/{view}/3/4/20")
    rows = at.page.get_by_role("table", name="What each method thinks").locator("tbody tr")
    expect(rows).to_have_count(len(question["rankings"]))
    for row, ranking in zip(rows.all(), question["rankings"], strict=True):
        cells = row.locator("td").all_inner_texts()
        ranks = [question["ranks"][ranking["key"]][c] for c in (4, 20)]
        assert [cells[1].split()[0], cells[3].split()[0]] == [f"#{rank}" for rank in ranks]
        assert cells[4] == ("A" if ranks[0] < ranks[1] else "B")


def test_peaks_are_reached_by_key_and_button(
    at: Tab, server: Server, store: Path, context: Context, pool: str, view: str
) -> None:
    question = respond(context, f"question/{pool}/{view}/4", {})[1]
    stored = {
        row.candidate_id: row for row in read_trajectories(next((store / "tokens").iterdir()), question["id"])
    }
    residual = stored[question["candidates"][2]["id"]].residual
    high = [i for i, v in enumerate(residual) if v >= 1.2 and (i == 0 or residual[i - 1] < v)]
    at.open(f"{server.base}#/compare/{pool}/{view}/4/2/20?heat=residual")
    page = at.page
    for i in high[:2]:
        page.keyboard.press("n")
        expect(page.locator(".token-tip")).to_have_attribute("data-token", str(i))
    page.get_by_role("button", name="Previous peak").click()
    expect(page.locator(".token-tip")).to_have_attribute("data-token", str(high[0]))


def test_the_pointer_reads_values_from_training_curves(at: Tab, context: Context) -> None:
    (curve,) = respond(context, "curves", {})[1]["curves"]
    columns = respond(context, f"curve/{curve['fingerprint']}", {})[1]["columns"]
    chart = at.page.get_by_role("img", name="Training: weighted loss, nats per token")
    box = chart.bounding_box()
    assert box is not None
    chart.hover(position={"x": box["width"] - 15, "y": 60})
    expect(at.page.locator(".tooltip")).to_contain_text(f"training step {columns['step'][-1]}")
    assert f"{columns['loss'][-1]:.3f}"[:4] in at.page.locator(".tooltip").inner_text()


def test_what_does_not_exist_is_a_sentence(browser: Browser, server: Server, pool: str, view: str) -> None:
    with tab(browser) as opened:
        opened.open(server.url)
        for where, said in {
            f"#/question/{pool}/{view}/999": "there is no number 999",
            f"#/question/{pool}/{'0' * 12}/1": "There are no scores 000000000000",
            f"#/artifact/pool/{'0' * 12}": "There is no pool 000000000000",
            "#/nothing": "There is no such page",
            f"#/compare/{pool}/{view}/1/2/77": "there is no number 77",
        }.items():
            opened.page.goto(server.base + where)
            expect(opened.page.get_by_role("alert")).to_contain_text(said)


def test_a_tab_without_the_cookie_says_what_to_do(browser: Browser, server: Server) -> None:
    with tab(browser) as opened:
        opened.page.goto(server.base)
        expect(opened.page.locator("body")).to_contain_text("Open the address that the terminal shows")
        expect(opened.page).to_have_url(server.base + "?again")


MATH = {
    r"\frac{a}{b}": "<mfrac><mi>a</mi><mi>b</mi></mfrac>",
    r"x^2_1": "<msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup>",
    r"\sqrt[3]{x+1}": "<mroot><mrow><mi>x</mi><mo>+</mo><mn>1</mn></mrow><mn>3</mn></mroot>",
    r"\boxed{\alpha \leq \beta}": '<mrow class="boxed"><mrow><mi>α</mi><mo>≤</mo><mi>β</mi></mrow></mrow>',
    r"\sum_{i=1}^n i": "<munderover><mo",
    r"\left( \dfrac12 \right)": '<mo fence="true" form="prefix" stretchy="true">(</mo><mfrac><mn>1',
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}": (
        "<mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr>"
    ),
    r"\text{if } x \in \mathbb{R}": "<mtext>if </mtext>",
    r"{a \over b+1}": "<mfrac><mrow><mi>a</mi></mrow><mrow><mi>b</mi><mo>+</mo><mn>1</mn></mrow></mfrac>",
    r"n \choose k": '<mfrac linethickness="0"><mrow><mi>n</mi></mrow><mi>k</mi></mfrac>',
    r"\$5 + x": "<mo>$</mo><mn>5</mn>",
    r"f'(x)": "<msup><mi>f</mi><mo>′</mo></msup>",
}
RAW = [
    r"\unknowncommand{x}",
    r"\frac{a}{",
    "{" * 60 + "x" + "}" * 60,
    r"\left( x",
    r"\href{javascript:alert(1)}{x}",
]


def test_mathematics_is_rendered_or_left_as_it_is(at: Tab) -> None:
    shown = at.page.evaluate(
        """async ([sources]) => {
          const { mathText } = await import("/static/js/math/text.js");
          return sources.map((s) => {
            const d = document.createElement("div");
            d.append(...mathText(s));
            return d.innerHTML;
          });
        }""",
        [
            [
                *(f"so ${source}$." for source in MATH),
                *(f"so ${source}$." for source in RAW),
                "costs $5 and $6",
                r"no \(end",
                "<b>&amp;</b>",
            ]
        ],
    )
    for html, expected in zip(shown, MATH.values(), strict=False):
        assert expected in html and "raw-math" not in html, html
    for html in shown[len(MATH) : len(MATH) + len(RAW)]:
        assert 'class="raw-math"' in html and "<math" not in html
    assert shown[-3:] == ["costs $5 and $6", r"no \(end", "&lt;b&gt;&amp;amp;&lt;/b&gt;"]


def test_lists_in_the_browser_follow_the_servers_rules(
    at: Tab, context: Context, pool: str, view: str
) -> None:
    """The static export searches, filters and sorts with JavaScript."""
    from lark.explorer.api import answer
    from lark.explorer.lists import Query, Rows

    for path in ("artifacts", f"questions/{pool}/{view}"):
        rows = answer(context, path)
        assert isinstance(rows, Rows)
        sort, flag = next(iter(rows.sorts)), next(name for name, values in rows.flags.items() if values.any())
        for asked in (
            {},
            {"search": "DEMO"},
            {"sort": sort},
            {"sort": f"-{sort}", "flags": flag},
            {"page": "1"},
            {"search": "zzz"},
        ):
            found = at.page.evaluate(
                'async ([all, asked]) => (await import("/static/js/lists.js")).query(all, asked)',
                [
                    json.loads(json.dumps(rows.everything())),
                    {k: int(v) if k == "size" else v for k, v in asked.items()},
                ],
            )
            expected = rows.page(Query.of(asked))
            assert [strip(row) for row in found["rows"]] == json.loads(json.dumps(expected["rows"])), asked
            assert {k: found[k] for k in ("total", "found", "page", "pages")} == {
                k: expected[k] for k in ("total", "found", "page", "pages")
            }
            assert found["flags"] == expected["flags"]


def strip(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("_")}


@pytest.fixture(scope="module")
def exported(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An export of three questions behind a plain static server."""
    folder = tmp_path_factory.mktemp("export") / "pages"
    export(context, folder, 3)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    ) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/"
        running.shutdown()


def test_the_export_shows_the_same_pages_and_asks_no_other_server(
    browser: Browser, exported: str, pool: str, view: str
) -> None:
    with tab(browser) as opened:
        page = opened.page
        opened.open(exported)
        expect(page.get_by_role("heading", name="Results")).to_be_visible()
        page.get_by_role("link", name="Pool", exact=True).click()
        rows = page.get_by_role("table", name="Questions").locator("tbody tr")
        expect(rows).to_have_count(3)
        rows.nth(1).click()
        expect(page.locator("table.candidates tbody tr")).to_have_count(33)
        page.keyboard.press("j")
        page.keyboard.press("c")
        expect(page.locator(".tokens")).to_have_count(2)
        page.locator(".tokens").first.locator("[data-i='1']").first.hover()
        expect(page.locator(".token-tip .alternatives > .alternative")).to_have_count(5)
        page.get_by_role("button", name="Text", exact=True).click()
        expect(page.locator(".text-side .prose").first).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("table.candidates")).to_be_visible()
        page.keyboard.press("]")
        expect(page.locator("h1")).to_have_text("Question demo-00005")  # the next question of the export
        opened.open(f"{exported}#/methods/{pool}/{view}?m=rsr")
        expect(page.get_by_role("table", name=re.compile("disagree most")).locator("tbody tr")).to_have_count(
            3
        )
        page.get_by_role("link", name="Answers", exact=True).click()
        page.get_by_role("table", name="Problems").locator("tbody tr").first.click()
        page.locator("details.sample summary").first.click()
        expect(page.locator("details.sample .prose").first).not_to_have_text("Loading…")
        assert opened.errors == [] and opened.foreign(exported) == []
        page.goto(f"{exported}#/question/{pool}/{view}/1")
        expect(page.get_by_role("alert")).to_contain_text("not part of the export")
