"""The page of a comparison: its numbers against the result, its words, slices and form, and what hostile names do to it."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_rank.data.runs import Judgements, Run
from lightning_rank.offline.compare import compare
from lightning_rank.report import comparison_page
from lightning_rank.report.comparison import verdict
from lightning_rank.report.slices import slices_of
from tests import browser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Element:
    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, dict(attributes), []

    @property
    def text(self):
        return " ".join(self.raw.split())

    @property
    def raw(self):
        return "".join(child if isinstance(child, str) else child.raw for child in self.children)

    def all(self, tag):
        return (element for element in self.elements() if element.tag == tag)

    def elements(self):
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child.elements()

    def rows(self):
        return [[cell.text for cell in row.children if isinstance(cell, Element)] for row in self.all("tr")]


class Page(HTMLParser):
    """A tree of elements; a tag that is not closed where it should be fails."""

    def __init__(self, text):
        super().__init__()
        self.root = Element("root", [])
        self.open = [self.root]
        self.feed(text)
        assert self.open == [self.root]

    def handle_starttag(self, tag, attributes):
        self.open[-1].children.append(Element(tag, attributes))
        if tag not in VOID:
            self.open.append(self.open[-1].children[-1])

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Element(tag, attributes))

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


def tree(text):
    return Page(text).root


def lists(queries=40, seed=0, lift=0.6):
    """Judgements of ten documents a query, and two runs, of which the second knows more of the grades."""
    generator = np.random.default_rng(seed)
    grades = generator.integers(0, 3, (queries, 10))
    noise = generator.normal(size=(2, queries, 10))
    judged = {f"q{q}": {f"d{i}": float(g) for i, g in enumerate(row)} for q, row in enumerate(grades)}
    scores = (noise[0], noise[1] + lift * grades)
    runs = [{f"q{q}": {f"d{i}": float(s) for i, s in enumerate(row)} for q, row in enumerate(of)} for of in scores]
    return Judgements.from_dict(judged), Run.from_dict(runs[0], name="old"), Run.from_dict(runs[1], name="new")


JUDGED, OLD, NEW = lists()


@pytest.fixture(scope="module")
def result():
    return compare(JUDGED, [OLD, NEW], "ndcg@5 map mrr@3")


@pytest.fixture(scope="module")
def page(result):
    return comparison_page(result, attributes={"market": {f"q{q}": "de" if q < 12 else "fr" for q in range(40)}})


def test_the_table_has_the_numbers_of_the_result(result, page):
    header, *rows = next(tree(page).all("table")).rows()
    assert header[:5] == ["measure", "baseline", "candidate", "difference", "interval"]
    assert len(rows) == 3
    for row, d in zip(rows, result.differences, strict=True):
        r = d.result
        told = " better" if d.pvalue < 0.05 else ""  # the candidate knows more
        assert row[:5] == [
            d.measure, f"{r.value_a:.4f}", f"{r.value_b:.4f}", f"{r.difference:+.4f}{told}", f"{r.low:+.4f} to {r.high:+.4f}",
        ]  # fmt: skip
        assert [float(p) for p in row[6:8]] == pytest.approx([r.pvalue, d.pvalue], abs=5e-5)
        assert row[9] == f"{d.wins} / {r.ties} / {d.losses}"


def test_the_bars_are_the_differences_from_the_largest_down(result, page):
    figures = [svg for svg in tree(page).all("svg") if svg.attributes.get("role") == "img"]
    assert len(figures) == 3
    for svg, d in zip(figures, result.differences, strict=True):
        old, new = (result.evaluations[name].per_query(d.measure) for name in ("old", "new"))
        wanted = {query: new[query] - old[query] for query in old}
        bars = [bar for bar in svg.all("rect") if bar.attributes["class"] != "band"]
        titles = dict(next(iter(bar.all("title"))).text.split(": ") for bar in bars)
        assert {query: float(value) for query, value in titles.items()} == pytest.approx(wanted, abs=5.1e-5)
        assert list(titles) == sorted(wanted, key=lambda query: -wanted[query])
        top, bottom = max(*wanted.values(), d.result.high), min(*wanted.values(), d.result.low)
        drawn = [
            float(bar.attributes["height"]) / 1000 * (top - bottom) * (1 if bar.attributes["class"] == "win" else -1)
            for bar in bars
        ]
        assert drawn == pytest.approx(sorted(wanted.values(), reverse=True), abs=2e-4)
        # A win stands on the zero line, a loss hangs from it.
        zero = 1000 * top / (top - bottom)
        for bar in bars:
            y, height = float(bar.attributes["y"]), float(bar.attributes["height"])
            assert (y + height if bar.attributes["class"] == "win" else y) == pytest.approx(zero, abs=0.2)


def test_of_many_queries_a_bar_is_the_mean_of_some():
    result = compare(*(lambda j, a, b: (j, [a, b]))(*lists(1000, lift=0.2)), "ndcg@5")
    text = comparison_page(result)
    svg = next(svg for svg in tree(text).all("svg") if svg.attributes.get("role") == "img")
    bars = [bar for bar in svg.all("rect") if bar.attributes["class"] != "band"]
    assert len(bars) == 300
    assert "A bar is the mean of about 3 neighbours" in text
    d = result.differences[0]
    change = [b - a for a, b in zip(*(result.evaluations[n].values["ndcg@5"] for n in ("old", "new")), strict=True)]
    parts = [part.mean() for part in np.array_split(np.sort(change)[::-1], 300)]
    span = max(*parts, d.result.high) - min(*parts, d.result.low)
    signed = [float(b.attributes["height"]) * (1 if b.attributes["class"] == "win" else -1) * span / 1000 for b in bars]
    assert signed == pytest.approx(parts, abs=2e-4)
    assert len(text) < 150_000


def test_slices_are_comparisons_of_their_queries(result, page):
    table = next(t for t in tree(page).all("table") if t.rows()[0][0] == "market")
    rows = table.rows()[1:]
    assert [row[:2] for row in rows] == [["fr", "28"], ["de", "12"]]
    old, new = (result.evaluations[name].per_query("ndcg@5") for name in ("old", "new"))
    for row, chosen in zip(rows, (range(12, 40), range(12)), strict=True):
        change = np.array([new[f"q{q}"] - old[f"q{q}"] for q in chosen])
        reach = {12: 2.2010, 28: 2.0518}[len(change)] * change.std(ddof=1) / len(change) ** 0.5  # of t with n - 1
        assert float(row[4]) == pytest.approx(change.mean(), abs=5.1e-5)
        assert [float(x) for x in row[5].split(" to ")] == pytest.approx(
            [change.mean() - reach, change.mean() + reach], abs=1e-4
        )


def test_slices_by_what_the_judgements_hold(result, page):
    table = next(t for t in tree(page).all("table") if t.rows()[0][0] == "relevant documents")
    counts = [sum(g >= 1 for g in of.values()) for of in JUDGED.to_dict().values()]
    assert sum(int(row[1]) for row in table.rows()[1:]) == 40
    for label, number, *_ in table.rows()[1:]:
        low, _, high = label.partition(" to ")
        assert int(number) == sum(int(low) <= count <= int(high or low) for count in counts)
    assert not [t for t in tree(page).all("table") if t.rows()[0][0] == "judged documents"], "all have ten"


@given(
    st.lists(
        st.one_of(st.none(), st.integers(-5, 5), st.floats(allow_infinity=False)) | st.sampled_from(["a", "b c", "<i>"]),
        min_size=1, max_size=60,
    )
)  # fmt: skip
def test_every_query_is_in_one_slice(values):
    of_query = {f"q{i}": value for i, value in enumerate(values)}
    old = {query: i / 100 for i, query in enumerate(of_query)}
    new = {query: value * 1.5 for query, value in old.items()}
    slices = slices_of("it", of_query, old, new).slices
    assert sum(s.n for s in slices) == len(values)
    total = sum(s.n * s.candidate for s in slices)
    assert total == pytest.approx(sum(new.values()))
    assert all(s.n > 0 and (s.result is None) == (s.n == 1) for s in slices)


@pytest.mark.parametrize(
    ("values", "attribute", "labels"),
    [
        ([1, 1, 2, 3], "it", ["1", "2", "3"]),
        (list(range(8)), "it", ["0 to 1", "2 to 3", "4 to 5", "6 to 7"]),
        ([0] * 20 + list(range(1, 8)), "it", ["0", "1 to 7"]),
        ([0.5, None, float("nan")], "it", ["0.5", "not given"]),
        (["b", "a", "b"], "it", ["b", "a"]),
        ([True, False, True], "it", ["True", "False"]),
        ([f"word {'and ' * (i % 3)}{i}" for i in range(30)], "words in it", ["2", "3", "4"]),
        ([f"g{i % 14}" for i in range(98)], "it", [*(f"g{i}" for i in range(12)), "others"]),
    ],
)  # fmt: skip
def test_groups(values, attribute, labels):
    of_query = {f"q{i}": value for i, value in enumerate(values)}
    zeros = dict.fromkeys(of_query, 0.0)
    found = slices_of("it", of_query, zeros, zeros)
    assert (found.attribute, [s.label for s in found.slices]) == (attribute, labels)


def single(measures, change, **options):
    """A comparison in which the candidate puts the only relevant document first, or last, where ``change`` says so."""
    judged = {f"q{i}": {"a": 1, "b": 0, "c": 0} for i in range(len(change))}
    middle, first, last = {"b": 3.0, "a": 2.0, "c": 1.0}, {"a": 3.0, "b": 2.0, "c": 1.0}, {"c": 3.0, "b": 2.0, "a": 1.0}
    new = {f"q{i}": (middle, first, last)[c] for i, c in enumerate(change)}
    return compare(
        Judgements.from_dict(judged),
        {"bm25": Run.from_dict(dict.fromkeys(judged, middle)), "dense": Run.from_dict(new)}, measures, **options,
    )  # fmt: skip


def test_verdicts():
    found = verdict(single("mrr", [1] * 20 + [0] * 10))
    assert found[:2] == ("better", "dense is better than bm25.")
    assert re.fullmatch(
        r"mrr goes from 0\.5000 to 0\.8333: \+0\.3333, 95 % interval \+0\.\d+ to \+0\.\d+, p = [\de.-]+, over 30 queries: 20 won, "
        r"10 tied, 0 lost\.", found.details[0],
    )  # fmt: skip
    assert verdict(single("mrr", [-1] * 20 + [0] * 10))[:2] == ("worse", "dense is worse than bm25.")
    found = verdict(single("mrr", [1, -1, 0, 0, 0, 1, -1, -1]))
    assert found[:2] == ("open", "No difference between dense and bm25 is shown.")
    assert re.fullmatch(r"These queries do not tell a change of -0\.\d+ from one of \+0\.\d+\.", found.details[1])
    found = verdict(single("mrr", [0] * 8))
    assert (found.outcome, len(found.details)) == ("open", 1)
    assert "+0.0000, 95 % interval +0.0000 to +0.0000, p = 1.0000" in found.details[0]


def test_the_verdict_goes_the_measures_way_and_names_the_others():
    # Rank 1 taken by the relevant document: less fall-out there is better.
    found = verdict(single("fall_out@1 mrr", [1] * 20 + [0] * 10))
    assert found.outcome == "better"
    assert found.details[0].startswith("fall_out@1 goes from 0.5000 to 0.1667: -0.3333")
    assert found.details[1] == "Better too on mrr (+0.3333)."
    # The first is not moved by what happens below rank 1.
    found = verdict(single("precision@1 mrr", [-1] * 20 + [0] * 10))
    assert found.details[-1].startswith("Worse on mrr (-0.1111)")
    # Precision in the first two suffers where the first does not.
    change = [1] * 12 + [-1] * 28
    found = verdict(single("precision@1 precision@2", change))
    assert found.outcome == "better"
    assert found.details[-1] == "But worse on precision@2 (-0.3500)."


def test_a_difference_that_the_correction_takes_is_not_shown():
    change = [1] * 5 + [0] * 25
    alone, among = single("mrr", change), single("mrr precision@3 recall@3 hit_rate@3", change, correction="bonferroni")
    assert 0.0125 < alone["mrr"].pvalue < 0.05
    assert verdict(alone).outcome == "better"
    found = verdict(among)
    assert found.outcome == "open"
    assert "leaves out 0; after the correction that is not enough" in found.details[1]


def test_a_run_of_unjudged_documents_is_said_to_be_underrated():
    new = {
        query: {f"{d}new" if i % 2 else d: s for i, (d, s) in enumerate(of.items())} for query, of in OLD.to_dict().items()
    }
    details = verdict(compare(JUDGED, [OLD, Run.from_dict(new, name="new")], "ndcg@5")).details
    first = [sorted(of, key=of.get)[-5:] for of in new.values()]
    share = sum("new" not in document for of in first for document in of) / 200
    assert f"Of the first 5 documents of old 100.0% are judged, of new {share:.1%}:" in details[-1]
    assert details[-1].endswith("which underrates new.")


def test_the_worst_queries_stand_side_by_side(result, page):
    worst = result.worst(5)
    found = [d for d in tree(page).all("details") if "Query" in next(iter(d.all("summary"))).text]
    assert len(found) == len(worst) == 5
    for details, change in zip(found, worst, strict=True):
        assert next(iter(details.all("summary"))).text == (
            f"Query {change.query}: {change.baseline:.4f} to {change.candidate:.4f} ({change.difference:+.4f})"
        )
        for table, ranking, other in zip(
            details.all("table"), (change.before, change.after), (change.after, change.before), strict=True
        ):
            places = [document for document, _ in other]
            assert table.rows()[1:] == [
                [str(i), document, f"{grade:g}", str(places.index(document) + 1) if document in places else ""]
                for i, (document, grade) in enumerate(ranking, 1)
            ]
            marked = [row.attributes.get("class") == "relevant" for row in table.all("tr")][1:]
            assert marked == [grade >= 1 for _, grade in ranking]


def test_conventions_and_counts(result, page):
    terms = {t.text: d.text for t, d in zip(tree(page).all("dt"), tree(page).all("dd"), strict=True)}
    assert result.evaluations["old"].conventions.items() <= terms.items()
    assert (terms["correction"], terms["test"]) == ("holm, over 3 comparisons", "paired t, two-sided")
    assert "seed" not in terms, "nothing is random in the t test"
    assert "with the 95 % interval of its mean by t; p of the paired t test" in page
    drawn = comparison_page(compare(JUDGED, [OLD, NEW], "mrr@3", test="bootstrap", resamples=99, seed=4))
    assert "interval of its mean by BCa bootstrap" in drawn
    assert "<dt>seed</dt><dd>4</dd>" in drawn
    counts = next(t for t in tree(page).all("table") if "missing in the run" in t.rows()[0])
    assert counts.rows()[1] == ["old", "40", "0", "0", "0", "1.0000 @5", "40 @5"]


def test_the_page_stands_alone_and_can_be_read_by_all(page):
    root = tree(page)
    assert page.startswith("<!DOCTYPE html>")
    for forbidden in ("http:", "https:", "//", "src=", "<script", "<link", "url(", "@import", "javascript"):
        assert forbidden not in page
    assert next(iter(root.all("html"))).attributes["lang"] == "en"
    assert "width=device-width" in page
    assert "prefers-color-scheme: dark" in page
    for table in root.all("table"):
        assert all("scope" in th.attributes for th in table.all("th"))
        head, *rows = table.all("tr")
        assert {cell.tag for cell in head.children if isinstance(cell, Element)} == {"th"}
        assert all(any(True for _ in row.all("th")) for row in rows)
        assert len({len(row) for row in table.rows()}) == 1
    for svg in root.all("svg"):
        assert svg.attributes.get("aria-hidden") == "true" or (
            svg.attributes["role"] == "img" and svg.attributes["aria-label"] and any(True for _ in svg.all("title"))
        )
    for scroll in root.all("div"):
        if scroll.attributes.get("class") == "scroll":
            assert scroll.attributes["tabindex"] == "0"
            assert {"aria-label", "aria-labelledby"} & scroll.attributes.keys()
    ids = [element.attributes["id"] for tag in ("h2", "p") for element in root.all(tag) if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for name in re.findall(r'aria-(?:labelledby|describedby)="([^"]*)"', page):
        assert name in ids


def test_several_candidates_have_a_verdict_and_slices_each():
    third = Run.from_dict({q: {d: -s for d, s in of.items()} for q, of in NEW.to_dict().items()}, name="turned")
    result = compare(JUDGED, [OLD, NEW, third], "ndcg@5 map")
    root = tree(comparison_page(result))
    verdicts = [s.text for s in root.all("section")]
    assert [text.startswith(words) for text, words in zip(verdicts, ("new is better", "turned is worse"), strict=True)] == [
        True
    ] * 2
    table = next(root.all("table"))
    assert [row[:2] for row in table.rows()[1:]] == [
        ["new", "ndcg@5"],
        ["new", "map"],
        ["turned", "ndcg@5"],
        ["turned", "map"],
    ]
    assert len([svg for svg in root.all("svg") if svg.attributes.get("role") == "img"]) == 2
    assert "2 further comparisons are in the table alone" in root.text


HOSTILE = """<script>alert(1)</script>"'&amp;</title></svg>{{ 7*7 }}<img src=x onerror=y>"""


def test_everything_is_escaped():
    judged = Judgements.from_dict({f"{HOSTILE}{i}": {f"d{HOSTILE}": 1, "b": 0} for i in range(3)})
    good, bad = ({f"{HOSTILE}{i}": {f"d{HOSTILE}": s, "b": 1.0} for i in range(3)} for s in (2.0, 0.5))
    result = compare(judged, {f"old{HOSTILE}": Run.from_dict(good), f"new{HOSTILE}": Run.from_dict(bad)}, "mrr")
    attributes = {f"column{HOSTILE}": {f"{HOSTILE}{i}": f"value{HOSTILE}{i}" for i in range(2)}}
    text = comparison_page(result, attributes=attributes, title=f"title{HOSTILE}")
    root = tree(text)
    assert not any(True for tag in ("script", "img") for _ in root.all(tag))
    assert not [name for element in root.elements() for name in element.attributes if name.startswith("on")]
    assert "49" not in re.sub(r"[\d.]*49[\d.]+|[\d.]+49", "", text), "the name was taken for a template"
    for said in (
        f"title{HOSTILE}",
        f"old{HOSTILE}",
        f"new{HOSTILE}",
        f"d{HOSTILE}",
        f"column{HOSTILE}",
        f"value{HOSTILE}0",
    ):
        assert said in root.text
    assert {f"{HOSTILE}{i}: -0.5000" for i in range(3)} <= {t.text for t in root.all("title")}
    assert next(root.all("title")).text == f"title{HOSTILE}"


def test_the_text_of_a_query_stands_beside_it(result):
    words = {f"q{i}": f"what is number {i}" for i in range(40)}
    root = tree(comparison_page(result, attributes={"question": words}))
    details = next(d for d in root.all("details") if "Query" in d.text)
    assert f"question: {words[result.worst(1)[0].query]}" in details.text


def test_a_page_that_would_be_too_large_keeps_fewer_queries(result):
    with pytest.warns(UserWarning, match="keeps 3 of the 7 worst queries asked for"):
        text = comparison_page(result, worst=7, shown=1000)
    assert "3 of the 7 queries asked for are kept" in text
    assert len([d for d in tree(text).all("details") if "Query" in d.text]) == 3


@pytest.mark.parametrize("options", [{"worst": -1}, {"worst": 1.5}, {"shown": 0}, {"shown": True}])
def test_bad_options(options, result):
    with pytest.raises(ValueError, match=r"must be a whole number >= [01], got"):
        comparison_page(result, **options)


def test_none_of_the_worst_and_nothing_lost(result):
    assert "None asked for." in comparison_page(result, worst=0)
    assert "No query lost anything." in comparison_page(single("mrr", [1] * 5))


def test_without_jinja2_the_error_names_the_extra(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ModuleNotFoundError, match=r"lightning-rank\[pages\]"):
        comparison_page(result)


@browser.needed
def test_on_a_phone_only_tables_scroll_sideways(tmp_path):
    third = lists(seed=1, lift=1.2)[2]
    page = comparison_page(compare(JUDGED, {"baseline": OLD, "candidate": NEW, "another one": third}))
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    phone = browser.Browser(tmp_path, (375, 800), mobile=True)
    try:
        phone.open(tmp_path / "page.html")
        assert phone.value("document.documentElement.scrollWidth") == 375
        assert phone.value("Math.max(...[...document.querySelectorAll('.scroll')].map((one) => one.scrollWidth))") > 375
    finally:
        phone.close()
