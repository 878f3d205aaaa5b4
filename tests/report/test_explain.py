"""The page of rankings: what is in it, what it refuses, and in a browser that its numbers are the library's."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import torch

from lightning_rank import functional
from lightning_rank.data.runs import Judgements, Run
from lightning_rank.explain import explain
from lightning_rank.offline.evaluate import evaluate
from lightning_rank.report import explain_page
from tests import browser

JUDGED = {"q1": {"a": 2, "b": 0, "c": 1}, "q2": {"a": 1, "b": 1}, "q3": {"z": 0}}
OLD = Run.from_dict({"q1": {"a": 3, "b": 2, "c": 1}, "q2": {"b": 2, "c": 1, "a": 0}, "q3": {"z": 1}}, name="old")
NEW = Run.from_dict({"q1": {"c": 3, "d": 2, "a": 1}, "q2": {"a": 2, "b": 1}}, name="new")


def judgements(lists: dict[str, dict[str, float]] = JUDGED) -> Judgements:
    return Judgements.from_dict(lists)


def data_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


# What is in the page --------------------------------------------------------------------------------------------------


def test_queries_come_by_their_loss_with_the_values_of_evaluate():
    page = explain_page(judgements(), [OLD, NEW])
    assert page.queries == ("q1", "q3", "q2")
    data = data_of(page.html)
    assert [query["id"] for query in data["queries"]] == ["q1", "q3", "q2"]
    for query in data["queries"]:
        assert query["values"] == [
            evaluate(judgements(), run, "ndcg@10").per_query("ndcg@10")[query["id"]] for run in (OLD, NEW)
        ]
    first = data["queries"][0]
    assert first["docs"] == ["a", "b", "c", "d"]
    assert first["grades"] == [2, 0, 1, None]
    assert [run["order"] for run in first["runs"]] == [[0, 1, 2], [2, 3, 0]]
    assert data["queries"][1]["runs"][1] == {"order": [], "retrieved": 0, "tied": [], "beyond": []}


def test_of_one_run_the_worst_come_first_and_of_a_measure_of_errors_the_highest():
    assert explain_page(judgements(), NEW).queries == ("q3", "q1", "q2")
    lower = evaluate(judgements(), NEW, "fall_out@1").per_query("fall_out@1")
    queries = explain_page(judgements(), NEW, "fall_out@1").queries
    assert [lower[query] for query in queries] == sorted(lower.values(), reverse=True)


def test_judged_documents_that_are_not_shown_are_counted():
    judged = {"q": {f"d{i}": i % 4 for i in range(40)} | {"minus": -1}}
    run = Run.from_dict({"q": {f"d{i}": -i for i in range(30)} | {"minus": 99}}, name="run")
    (query,) = data_of(explain_page(judgements(judged), run, documents=12).html)["queries"]
    assert query["runs"] == [{"order": list(range(12)), "retrieved": 31, "tied": [], "beyond": []}]
    assert query["grades"][0] == -1
    shown = [grade for grade in query["grades"] if grade > 0]
    everything = sorted([grade for grade, count in query["rest"] for _ in range(count)] + shown)
    assert everything == sorted(grade for grade in judged["q"].values() if grade > 0)
    (query,) = data_of(explain_page(judgements(judged), run, convention="trec_eval").html)["queries"]
    assert query["grades"][0] is None  # there, a grade below 0 is no judgement


def test_ties_come_in_the_order_of_the_convention_and_are_marked():
    run = Run.from_dict({"q1": {"a": 1, "c": 1, "b": 2}}, name="run")

    def listed(**options: Any) -> tuple[list[str], list[int]]:
        query = data_of(explain_page(judgements(), run, queries=["q1"], **options).html)["queries"][0]
        return [query["docs"][i] for i in query["runs"][0]["order"]], query["runs"][0]["tied"]

    assert listed() == (["b", "a", "c"], [2])
    assert listed(convention="trec_eval") == (["b", "c", "a"], [2])
    assert listed(ties="pessimistic") == (["b", "c", "a"], [2])


def test_conventions_are_where_the_page_begins():
    data = data_of(explain_page(judgements(), OLD, "map@5", convention="catboost", min_relevance=2).html)
    assert {name: data[name] for name in ("k", "gain", "relevant", "denominator", "measure")} == {
        "k": 5, "gain": "linear", "relevant": 2.0, "denominator": "cutoff", "measure": "map@5",
    }  # fmt: skip
    assert data_of(explain_page(judgements(), OLD, "mrr").html)["k"] is None


def test_nothing_in_the_data_can_leave_its_place():
    evil = "</script><script>alert(1)</script>@@data@@<!--"
    run = Run.from_dict({evil: {evil: 1.0}}, name=evil)
    page = explain_page(judgements({evil: {evil: 1}}), run, query_texts={evil: evil}, document_texts={evil: evil})
    assert page.html.lower().count("</script>") == 2
    (query,) = data_of(page.html)["queries"]
    assert query["id"] == query["text"] == query["docs"][0] == query["texts"][0] == evil


def test_the_page_asks_for_nothing_from_elsewhere():
    html = explain_page(judgements(), OLD).html
    assert set(re.findall(r"https?://[^\s\"'<]*", html)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in html
    assert not re.search(r"\bsrc=|@import|url\(", html)


def test_both_languages_say_the_same_things():
    english, chinese = json.loads(files("lightning_rank.report").joinpath("explain_words.json").read_text("utf-8")).values()
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", chinese[key])), key
    used = files("lightning_rank.report").joinpath("explain.html").read_text("utf-8")
    used += files("lightning_rank.report").joinpath("explain.js").read_text("utf-8")
    built = {
        f"about_{m}{end}"
        for m in ("ndcg", "map", "mrr", "precision", "recall")
        for end in ("", "_what", "_when", "_misread")
    }
    built |= {key for key in english if key.startswith(("col_", "sort_"))}
    for key in english.keys() - built:
        assert re.search(rf'@@{key}@@|W\.{key}\b|say\("{key}"|\? "{key}"|: "{key}"', used), f"{key} is never shown"
    assert '<html lang="zh-CN">' in explain_page(judgements(), OLD, lang="zh").html


def test_a_page_that_would_be_too_large_keeps_what_fits_and_says_so():
    many = {f"q{i}": {f"d{j}": j % 3 for j in range(20)} for i in range(500)}
    run = Run.from_dict(
        {q: {d: (i * 7 + j * 3) % 11 + j / 100 for j, d in enumerate(ds)} for i, (q, ds) in enumerate(many.items())}
    )
    with pytest.warns(UserWarning, match=r"keeps \d+ of 500 queries, those with the worst values in ndcg@10.*90,000 bytes"):
        page = explain_page(judgements(many), run, max_bytes=90_000)
    assert 10 < len(page.queries) < 500
    assert 80_000 < len(page.html.encode()) <= 90_000
    data = data_of(page.html)
    assert len(data["queries"]) == len(page.queries)
    assert data["total"] == page.total == 500
    worst = sorted(evaluate(judgements(many), run, "ndcg@10").per_query("ndcg@10").values())[: len(page.queries)]
    assert [query["values"][0] for query in data["queries"]] == worst
    with pytest.raises(ValueError, match=r"page of one query would have .* bytes, more than 1,000"):
        explain_page(judgements(many), run, max_bytes=1000)


def test_write(tmp_path):
    page = explain_page(judgements(), [OLD, NEW])
    page.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page.html
    with pytest.raises(FileExistsError):
        page.write(tmp_path / "page.html")
    page.write(tmp_path / "page.html", overwrite=True)
    assert re.fullmatch(r"<ExplainPage: 3 of 3 queries, \d\d kB>", repr(page))
    assert page._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"runs": [OLD, NEW, OLD]}, "names of their own"),
        ({"runs": {"a": OLD, "b": NEW, "c": OLD}}, "one run, or two .* got 3"),
        ({"runs": []}, "got 0"),
        ({"queries": ["q1", "q22"]}, "'q22' is not among the 3 that are judged. Did you mean 'q2'"),
        ({"measure": "ndgc@10"}, "Unknown measure 'ndgc@10'"),
        ({"measure": "ndcg@10 map"}, "must be one measure"),
        ({"measure": "num_ret"}, "mean over queries"),
        ({"documents": 5}, "looks at 10 documents"),
        ({"documents": 0}, "`documents` must be a whole number >= 1"),
        ({"lang": "de"}, "'en', 'zh', got 'de'"),
        ({"gain": [0, 1, 5]}, r"`gain` must be 'exp2' or 'linear', got \[0, 1, 5\]"),
    ],
)
def test_refusals(given, message):
    arguments = {"runs": [OLD, NEW], **given}
    with pytest.raises(ValueError, match=message):
        explain_page(judgements(), **arguments)


# In a browser ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def desktop(tmp_path_factory) -> Iterator[browser.Browser]:
    one = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def phone(tmp_path_factory) -> Iterator[browser.Browser]:
    one = browser.Browser(tmp_path_factory.mktemp("phone"), (390, 844), mobile=True)
    yield one
    one.close()


def shown(page: browser.Browser) -> dict[str, Any]:
    """What the page says: metrics, and of each row its document, grade and numbers."""
    return page.value(
        """({
          metrics: Object.fromEntries([...document.querySelectorAll("#tiles > div")].map(
            (tile) => [tile.dataset.metric, [tile.querySelector("data").value, tile.querySelector("data").textContent]])),
          rows: [...document.querySelectorAll("#rows tr")].map((row) => ({
            document: row.dataset.document,
            grade: row.querySelector("input").value,
            ...Object.fromEntries(["gain", "discount", "adds", "dcg", "ideal", "precision", "rr"].map(
              (name) => [name, row.querySelector(`td.${name}`).dataset.value ?? null])),
          })),
        })"""
    )


def expected(
    grades: list[float], judged: list[float], k: int | None, options: dict[str, Any], scores: list[float] | None = None
) -> dict[str, float]:
    """The library's metrics of grades in rank order, or by scores, of a query with these judged grades."""
    preds = torch.tensor([scores or range(len(grades), 0, -1)], dtype=torch.float64)
    target, ideal = torch.tensor([grades], dtype=torch.float64), torch.tensor([judged], dtype=torch.float64)
    given = {"top_k": k, "ideal": ideal}
    relevant = {"min_relevance": options["min_relevance"]}
    values = {
        "ndcg": functional.ndcg(preds, target, gain=options["gain"], **given),
        "dcg": functional.dcg(preds, target, gain=options["gain"], **given),
        "map": functional.average_precision(preds, target, denominator=options["denominator"], **relevant, **given),
        "mrr": functional.reciprocal_rank(preds, target, **relevant, **given),
        "precision": functional.precision(preds, target, **relevant, **given),
        "recall": functional.recall(preds, target, **relevant, **given),
    }
    return {name: value.item() for name, value in values.items()}


def check(
    page: browser.Browser, judged: dict[str, float | None], order: list[str], k: int | None, options: dict[str, Any]
) -> None:
    """The page shows these documents in this order, and of it the library's numbers."""
    said = shown(page)
    assert [row["document"] for row in said["rows"]] == order
    grades = [judged.get(document) or 0 for document in order]
    for row, document in zip(said["rows"], order, strict=True):
        grade = judged.get(document)
        assert (float(row["grade"]) if row["grade"] else None) == grade, document
    known = [grade for grade in judged.values() if grade is not None]
    for name, value in expected(grades, known, k, options).items():
        number, text = said["metrics"][name]
        assert float(number) == pytest.approx(value, rel=1e-12, abs=1e-15, nan_ok=True), (name, k, options)
        assert text == "undefined" if math.isnan(value) else abs(float(text) - value) <= 0.5e-4 + 1e-12, name
    # The positions, as far as the list itself tells: the ideal of a list knows no other documents.
    positions = explain(
        torch.arange(len(order), 0, -1, dtype=torch.float64), torch.tensor(grades, dtype=torch.float64), top_k=k,
        gain=options["gain"], min_relevance=options["min_relevance"],
    ).positions  # fmt: skip
    best = sorted(known, reverse=True)
    ideal_dcg = 0.0
    for i, (row, position) in enumerate(zip(said["rows"], positions, strict=True)):
        for name, of in (("gain", "gain"), ("discount", "discount"), ("adds", "contribution"), ("dcg", "dcg")):
            assert float(row[name]) == pytest.approx(getattr(position, of), rel=1e-12, abs=1e-15), (name, i)
        for name, of in (("precision", "precision"), ("rr", "reciprocal_rank")):
            wanted = getattr(position, of)
            assert (row[name] is None) == (wanted is None), (name, i)
            assert wanted is None or float(row[name]) == pytest.approx(wanted, rel=1e-12), (name, i)
        grade = max(best[i], 0) if i < len(best) else 0
        ideal_dcg += (2**grade - 1 if options["gain"] == "exp2" else grade) * position.discount
        assert float(row["ideal"]) == pytest.approx(ideal_dcg, rel=1e-12, abs=1e-15), i


def random_lists(rng: random.Random, number: int) -> tuple[dict[str, dict[str, float]], list[Run]]:
    """Queries of 1 to 12 documents, some not judged, some judged that are not retrieved; a query without relevant ones."""
    judged, runs = {}, [{}, {}]
    for i in range(number):
        pool = [f"d{j}" for j in range(rng.randint(1, 12))]
        top = 0 if i == 0 else rng.choice((1, 2, 4))
        judged[f"q{i}"] = {
            d: rng.choice((0, 0.5, 1, top, -1) if top > 1 else (0, top)) for d in pool if rng.random() < 0.8
        } | {f"m{j}": rng.randint(0, top) for j in range(rng.randint(0, 3))}
        judged[f"q{i}"] |= {"none": 0}  # every query is judged
        for run in runs:
            mixed = rng.sample(pool, len(pool))
            run[f"q{i}"] = {d: -float(place) for place, d in enumerate(mixed)}
    return judged, [Run.from_dict(run, name=name) for run, name in zip(runs, ("old", "new"), strict=True)]


def choose(page: browser.Browser, selector: str, value: str) -> None:
    """Choose in a select, whose list of choices no headless browser opens."""
    field = f"document.querySelector({selector!r})"
    page.value(f"{field}.value = {value!r}; {field}.dispatchEvent(new Event('change'))")


@browser.needed
@pytest.mark.parametrize("seed", range(3))
def test_numbers_equal_the_library_on_random_lists_reordered_by_input_events(desktop, tmp_path, seed):
    rng = random.Random(seed)
    judged, runs = random_lists(rng, 12)
    page = explain_page(judgements(judged), runs, min_relevance=0.5 if seed == 2 else 1)
    page.write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    moves = 0
    options = {"gain": "exp2", "min_relevance": 0.5 if seed == 2 else 1, "denominator": "relevant"}
    k: int | None = 10
    now = 1
    for place, query in enumerate(page.queries):
        if place:
            desktop.click("#next")
        grades: dict[str, float | None] = dict(judged[query])
        orders = [[document for document, _ in run.top(query, 99)] for run in runs]
        check(desktop, grades, orders[now], k, options)
        for _ in range(8):
            order = orders[now]
            n, document = len(order), rng.choice(order)
            i = order.index(document)
            row = f'#rows tr[data-document="{document}"]'
            kind = rng.choice(("keys", "keys", "buttons", "drag", "drag", "grade", "k", "gain", "denominator", "run"))
            if kind == "keys":
                step, far = rng.choice((-1, 1)), rng.random() < 0.3
                desktop.value(f"document.querySelector('{row} .handle').focus()")
                desktop.key("ArrowUp" if step < 0 else "ArrowDown", "Alt", *(["Shift"] if far else []))
                to = (0 if step < 0 else n - 1) if far else max(0, min(n - 1, i + step))
                order.insert(to, order.pop(i))
                assert desktop.value("document.activeElement.closest('tr')?.dataset.document") == document
                assert desktop.value("document.activeElement.className") == "handle"
            elif kind == "buttons":
                desktop.click(f"{row} .down")
                order.insert(min(n - 1, i + 1), order.pop(i))
                assert desktop.value(f"document.activeElement === document.querySelector('{row} .down')")
            elif kind == "drag":
                to = rng.randrange(n)
                goal = f'#rows tr[data-document="{order[to]}"]'
                desktop.place(f"#rows tr:nth-child({(i + to) // 2 + 1})")
                (x, y, w, h), (_, top, _, height) = desktop.box(f"{row} .handle"), desktop.box(goal)
                desktop.mouse("Pressed", x + w / 2, y + h / 2)
                for part in (0.5, 1):
                    end = top + (0.9 if to > i else 0.1) * height
                    desktop.mouse("Moved", x + w / 2, y + h / 2 + part * (end - y - h / 2) if to != i else y + h / 2)
                desktop.mouse("Released", x + w / 2, end, down=False)
                assert desktop.value(f"document.activeElement === document.querySelector('{row} .handle')")
                order.insert(to, order.pop(i))
            elif kind == "grade":
                grade = rng.choice((None, 0, 0.5, 1, 3, 5))
                desktop.value(f"document.querySelector('{row} input').focus()")
                desktop.type("" if grade is None else str(grade))
                grades[document] = grade
            elif kind == "k":
                if rng.random() < 0.3 and k is not None:
                    desktop.click("#whole")
                    k = None
                else:
                    k = rng.randint(1, n + 2)
                    desktop.value("document.getElementById('k').focus()")
                    desktop.type(str(k))
            elif kind in ("gain", "denominator"):
                options[kind] = rng.choice(
                    {"gain": ("exp2", "linear"), "denominator": ("relevant", "cutoff", "hits")}[kind]
                )
                choose(desktop, f"#{kind}", options[kind])
            else:
                now = 1 - now
                desktop.click(f"#runs label:nth-child({now + 1}) input")
            moves += kind in ("keys", "buttons", "drag")
            check(desktop, grades, orders[now], k, options)
    assert moves > 30
    assert desktop.errors() == []


@browser.needed
def test_a_phone_drags_by_touch_and_shows_nothing_beyond_its_edge(phone, tmp_path):
    run = Run.from_dict({"q": {f"document-{i}": -i for i in range(6)}}, name="a run with quite a long name")
    explain_page(judgements({"q": {f"document-{i}": i % 3 for i in range(6)}}), run).write(tmp_path / "page.html")
    phone.open(tmp_path / "page.html")
    assert phone.value("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    x, y = phone.place('[data-document="document-1"] .handle')
    _, top, _, height = phone.box('[data-document="document-2"]')
    phone.touch("Start", (x, y))
    for part in (0.3, 0.6, 1):
        phone.touch("Move", (x, y + part * (top + 0.9 * height - y)))
    phone.touch("End")
    assert [row["document"][-1] for row in shown(phone)["rows"]] == list("021345")
    assert phone.errors() == []


@browser.needed
def test_undo_reset_ideal_and_a_drag_that_is_given_up(desktop, tmp_path):
    judged = {"q": {"a": 0, "b": 1, "c": 2, "missed": 3}}
    run = Run.from_dict({"q": {"a": 3, "b": 2, "c": 1}}, name="run")
    explain_page(judgements(judged), run).write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    options = {"gain": "exp2", "min_relevance": 1, "denominator": "relevant"}
    desktop.click("#ideal")
    check(desktop, judged["q"], ["c", "b", "a"], 10, options)
    desktop.click("#undo")
    check(desktop, judged["q"], ["a", "b", "c"], 10, options)
    assert desktop.value("document.getElementById('undo').getAttribute('aria-disabled')") == "true"
    desktop.value("document.querySelector('[data-document=\"a\"] input').focus()")
    desktop.type("4")
    check(desktop, judged["q"] | {"a": 4}, ["a", "b", "c"], 10, options)
    desktop.click("#undo")
    check(desktop, judged["q"], ["a", "b", "c"], 10, options)
    x, y = desktop.place('[data-document="a"] .handle')
    desktop.mouse("Pressed", x, y)
    desktop.mouse("Moved", x, y + 300)
    check(desktop, judged["q"], ["b", "c", "a"], 10, options)
    desktop.key("Escape")
    check(desktop, judged["q"], ["a", "b", "c"], 10, options)
    desktop.mouse("Released", x, y + 300, down=False)
    desktop.click('[data-document="b"] .up')
    desktop.click("#reset")
    check(desktop, judged["q"], ["a", "b", "c"], 10, options)
    assert desktop.errors() == []


@browser.needed
def test_replay_shows_what_the_ranks_read_so_far_earn(desktop, tmp_path):
    judged = {"q": {"a": 0, "b": 2, "c": 1, "d": 3}}
    run = Run.from_dict({"q": {"a": 4, "b": 3, "c": 2, "d": 1}}, name="run")
    explain_page(judgements(judged), run, "ndcg@3").write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    full = {name: number for name, (number, _) in shown(desktop)["metrics"].items()}
    desktop.value("document.getElementById('step').focus()")
    for _ in range(2):
        desktop.key("ArrowDown")
    # As if what follows rank 2 were not relevant.
    wanted = expected([0, 2, 0, 0], [0, 2, 1, 3], 3, {"gain": "exp2", "min_relevance": 1, "denominator": "relevant"})
    for name, (number, _) in shown(desktop)["metrics"].items():
        assert float(number) == pytest.approx(wanted[name], rel=1e-12), name
    story = desktop.value("document.getElementById('story').textContent")
    assert story.replace("\N{MULTIPLICATION SIGN}", "x").startswith(
        "Rank 2: b, grade 2. Gain 3 x discount 0.6309 = 1.8928. DCG so far 1.8928, ideal 8.8928."
    )
    assert story.endswith("precision 1/2 = 0.5000. It is the first relevant one: RR = 1/2.")
    desktop.click("#on")
    desktop.click("#on")
    assert {name: number for name, (number, _) in shown(desktop)["metrics"].items()} == full
    desktop.click("#play")
    assert desktop.value("document.getElementById('steps').textContent") == "0 of 4"
    desktop.wait_for("document.getElementById('steps').textContent === '1 of 4'")
    desktop.click("#play")


@browser.needed
def test_keyboard_and_screen_reader(desktop, tmp_path):
    explain_page(judgements(), [OLD, NEW]).write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    # By Tab alone, from the button before the table: row by row only with the arrows.
    desktop.value("document.getElementById('on').focus()")
    desktop.key("Tab")
    focus = "document.activeElement.getAttribute('aria-label')"
    assert desktop.value(focus) == "Move c, rank 1 of 3"
    desktop.key("ArrowDown")
    assert desktop.value(focus) == "Move d, rank 2 of 3"
    desktop.key("End")
    assert desktop.value(focus) == "Move a, rank 3 of 3"
    desktop.key("ArrowUp", "Alt")
    assert desktop.value(focus) == "Move a, rank 2 of 3"
    desktop.wait_for("document.getElementById('live').textContent.startsWith('a is at rank 2 of 3. NDCG@10 ')")
    assert desktop.value("document.getElementById('live').getAttribute('aria-live')") == "polite"
    for label in ("Move a up", "Move a down", "Grade of a"):
        desktop.key("Tab")
        assert desktop.value(focus) == label
    desktop.key("Tab")
    assert not desktop.value("document.activeElement.closest('#rows')")
    # The browser's own tree of what assistive technology sees: everything that can be operated has a name.
    nodes = desktop.call("Accessibility.getFullAXTree")["nodes"]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            roles.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in (
        "button",
        "spinbutton",
        "combobox",
        "checkbox",
        "radio",
        "slider",
        "searchbox",
        "table",
        "image",
        "navigation",
    ):
        assert roles.get(role), role
        assert all(roles[role]), role
    assert len(roles["row"]) == 4
    assert len(roles["columnheader"]) == 11
    assert len(roles["rowheader"]) == 3


@browser.needed
def test_the_index_is_searched_and_sorted(desktop, tmp_path):
    texts = {"q1": "red shoes", "q2": "blue shoes", "q3": "a hat"}
    explain_page(judgements(), [OLD, NEW], query_texts=texts).write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")

    def listed() -> list[str]:
        return desktop.value("[...document.querySelectorAll('#list button')].map((b) => b.firstChild.textContent)")

    assert listed() == ["q1", "q3", "q2"]
    choose(desktop, "#sort", "win")
    assert listed() == ["q2", "q3", "q1"]
    choose(desktop, "#sort", "high")
    assert listed() == ["q2", "q1", "q3"]
    desktop.click("#search")
    for letter in "BLUE":
        desktop.call("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
        desktop.call("Input.dispatchKeyEvent", type="keyUp", key=letter)
    assert listed() == ["q2"]
    assert desktop.value("document.getElementById('found').textContent") == "1 of 3 queries"
    desktop.click("#list button")
    assert desktop.value("document.getElementById('query').textContent") == "Query q2"
    assert desktop.value("document.querySelector('#list button').getAttribute('aria-current')") == "true"
    check(desktop, JUDGED["q2"], ["a", "b"], 10, {"gain": "exp2", "min_relevance": 1, "denominator": "relevant"})


@browser.needed
def test_an_empty_list_and_one_that_is_cut_say_so(desktop, tmp_path):
    explain_page(judgements(), [OLD, NEW], queries=["q3"]).write(tmp_path / "empty.html")
    desktop.open(tmp_path / "empty.html")
    assert "no document for this query" in desktop.value("document.getElementById('notes').textContent")
    assert all(text == "undefined" for _, text in shown(desktop)["metrics"].values())
    long = Run.from_dict({"q": {f"d{i}": -i for i in range(30)}}, name="run")
    judged = {"q": {f"d{i}": i % 2 for i in range(30)}}
    explain_page(judgements(judged), long, "mrr", documents=7).write(tmp_path / "cut.html")
    desktop.open(tmp_path / "cut.html")
    assert "The first 7 of 30 documents are here; k is 7 at most." in desktop.value(
        "document.getElementById('notes').textContent"
    )
    options = {"gain": "exp2", "min_relevance": 1, "denominator": "relevant"}
    said = shown(desktop)["metrics"]
    for name, value in expected([i % 2 for i in range(7)], list(judged["q"].values()), 7, options).items():
        assert float(said[name][0]) == pytest.approx(value, rel=1e-12), name
    assert desktop.value("document.getElementById('whole').disabled")
    assert desktop.value("document.getElementById('k').value") == "7"


@browser.needed
@pytest.mark.parametrize("documents", [None, 4])
def test_tied_documents_have_the_library_s_mean_over_their_orders(desktop, tmp_path, documents):
    rng = random.Random(1)
    judged, runs = {}, [{}, {}]
    for i in range(8):
        pool = [f"d{j}" for j in range(rng.randint(5, 12))]
        judged[f"q{i}"] = {d: rng.choice((0, 0, 1, 2)) for d in pool if rng.random() < 0.8} | {"missed": i % 3}
        for run in runs:
            run[f"q{i}"] = {d: float(rng.randint(0, 2)) for d in rng.sample(pool, len(pool))}
    named = [Run.from_dict(run, name=name) for run, name in zip(runs, ("old", "new"), strict=True)]
    page = explain_page(judgements(judged), named, "ndcg@3", documents=documents)
    page.write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    other = "[...document.querySelectorAll('#tiles > div')].map((tile) => tile.textContent)"
    for query in page.queries:
        options = {"gain": "exp2", "min_relevance": 1, "denominator": "relevant"}
        scores = [runs[1][query][d] for d in runs[1][query]]
        grades = [judged[query].get(d, 0) for d in runs[1][query]]
        for options["denominator"] in ("relevant", "cutoff", "hits"):
            choose(desktop, "#denominator", options["denominator"])
            for k in (1, 3, 4):
                desktop.value("document.getElementById('k').focus()")
                desktop.type(str(k))
                said = shown(desktop)["metrics"]
                for name, value in expected(grades, list(judged[query].values()), k, options, scores).items():
                    assert float(said[name][0]) == pytest.approx(value, rel=1e-12, abs=1e-15, nan_ok=True), (
                        name,
                        k,
                        options,
                    )
                old = expected(
                    [judged[query].get(d, 0) for d in runs[0][query]], list(judged[query].values()), k, options,
                    list(runs[0][query].values()),
                )  # fmt: skip
                for tile, value in zip(desktop.value(other), old.values(), strict=True):
                    assert f"old: {'' if math.isnan(value) else f'{value:.4f}'}" in tile, tile
        desktop.click("#next")
    assert desktop.errors() == []


@browser.needed
def test_tied_documents_are_marked_until_the_reader_orders_them(desktop, tmp_path):
    run = Run.from_dict({"q1": {"b": 1, "a": 1, "c": 0}}, name="run")
    explain_page(judgements(), run, "mrr", queries=["q1"]).write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    notes = "document.getElementById('notes').textContent"
    assert "mean over all their orders" in desktop.value(notes)
    assert shown(desktop)["metrics"]["mrr"] == ["0.75", "0.7500"]
    assert "= mean over orders" in desktop.value("document.querySelector('[data-metric=mrr]').textContent")
    ranks = "[...document.querySelectorAll('#rows td.rank')].map((cell) => cell.textContent)"
    assert desktop.value(ranks) == ["1=", "2=", "3"]
    desktop.click('[data-document="b"] .down')
    assert desktop.value(ranks) == ["1", "2", "3"]
    assert shown(desktop)["metrics"]["mrr"] == ["1", "1.0000"]
    assert "mean over all their orders" not in desktop.value(notes)


@browser.needed
def test_where_the_other_run_has_a_document_is_said_as_far_as_it_is_known(desktop, tmp_path):
    one = Run.from_dict({"q": {"a": 3, "b": 2, "c": 1}}, name="one")
    two = Run.from_dict({"q": {"c": 3, "x": 2, "b": 1}}, name="two")
    details = "[...document.querySelectorAll('#rows small')].map((small) => small.textContent)"
    for documents, wanted in ((3, ["3 in one", "not in one", "2 in one"]), (2, ["not in the first 2 of one"] * 2)):
        page = explain_page(judgements({"q": {"a": 0, "b": 0, "c": 0, "x": 0}}), [one, two], "mrr", documents=documents)
        page.write(tmp_path / "page.html", overwrite=True)
        desktop.open(tmp_path / "page.html")
        assert desktop.value(details) == wanted


@browser.needed
def test_nothing_is_asked_of_the_network(desktop, tmp_path):
    explain_page(judgements(), [OLD, NEW]).write(tmp_path / "page.html")
    desktop.open(tmp_path / "page.html")
    desktop.click("#ideal")
    asked = [e["params"]["request"]["url"] for e in desktop.events if e.get("method") == "Network.requestWillBeSent"]
    assert asked
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
