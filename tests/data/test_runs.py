"""Runs and judgements: from columns and dictionaries, their order, what is repeated; TREC files read and written."""

from __future__ import annotations

import gzip
import math
import warnings
from pathlib import Path
from unittest import mock

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_rank.data import runs, trec
from lightning_rank.data.runs import Judgements, Run
from lightning_rank.data.tables import read_run
from lightning_rank.data.trec import read_msmarco_run, read_qrels, read_trec_run, write_trec

IDS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=4).filter(lambda x: not x.isspace())
LISTS = st.dictionaries(
    IDS, st.dictionaries(IDS, st.floats(allow_nan=False), min_size=1, max_size=5), min_size=1, max_size=4
)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# In memory ------------------------------------------------------------------------------------------------------------


@given(LISTS)
def test_dictionaries_and_back(lists):
    assert Run.from_dict(lists).to_dict() == lists


def test_a_grade_is_finite():
    with pytest.raises(ValueError, match=r"a grade must be a finite number, got inf for the document 'b' \(row 2\)"):
        Judgements.from_dict({"q": {"a": 1, "b": math.inf}})


def test_columns_in_any_order_are_grouped_by_query_as_they_first_came():
    run = Run.from_columns(["b", "a", "b", "a", "b"], [1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.5], name="x")
    assert run.query_ids == ["b", "a"]
    assert run.documents.to_list() == ["1", "3", "5", "2", "4"]
    assert run.offsets.tolist() == [0, 3, 5]
    assert run.lengths.tolist() == [3, 2]
    assert run.to_dict() == {"b": {"1": 0.1, "3": 0.3, "5": 0.5}, "a": {"2": 0.2, "4": 0.4}}


def test_ids_are_text_and_leading_zeros_stay():
    run = Run.from_columns(["007", "7"], ["01", "1"], [1, 2])
    assert run.query_ids == ["007", "7"]
    assert Run.from_columns(np.array([7]), pl.Series([1]), np.array([1])).query_ids == ["7"]


def test_tables_and_displays():
    run = Run.from_dict({"q": {"<d>": 0.5, "e": 1.0}}, name="<b>")
    assert repr(run) == "<Run '<b>': 1 queries, 2 documents>"
    assert run.to_polars().rows() == [("q", "<d>", 0.5), ("q", "e", 1.0)]
    pandas = pytest.importorskip("pandas")
    assert isinstance(run.to_pandas(), pandas.DataFrame)
    assert run.to_pandas().to_dict("list") == {"query": ["q", "q"], "document": ["<d>", "e"], "score": [0.5, 1.0]}
    html = run._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert "&lt;d&gt;" in html


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((["a"], ["d", "e"], [1]), r"of one length, got \(1, 2, 1\)"),
        (([], [], []), "nothing to evaluate"),
        ((["a", "a"], ["d", "e"], [1, math.nan]), r"a score must be a number, got nan for the document 'e' \(row 2\)"),
        ((["a", None], ["d", "e"], [1, 2]), r"query lacks an id in 1 rows, first in row 2"),
        (([7.0], ["d"], [1]), r"column query must be text or whole numbers, got Float64"),
        ((["a", 7], ["d", "e"], [1, 2]), r"of one type, all text or all whole numbers"),
    ],
)
def test_bad_columns(columns, words):
    with pytest.raises(ValueError, match=words):
        Run.from_columns(*columns)


# Order ----------------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.sampled_from("pq"), st.sampled_from(["a", "b", "B", "é", "10", "9"]), st.sampled_from([0.0, -0.0, 1, 2])),
        min_size=1, unique_by=lambda row: row[:2],
    )
)  # fmt: skip
def test_the_order_is_that_of_the_scores_then_the_larger_id(rows):
    run = Run.from_columns(*zip(*rows, strict=True))
    order = run.order()
    order = np.arange(len(run.documents)) if order is None else order
    of_query = [run.query_ids[i] for i in run.query_of_row]
    documents = run.documents.to_list()
    found = [(of_query[i], documents[i]) for i in order]
    # Sorted from the end to the start by bytes, as strcmp compares.
    by_id = sorted(rows, key=lambda row: row[1].encode(), reverse=True)
    expected = [row[:2] for q in run.query_ids for row in sorted((r for r in by_id if r[0] == q), key=lambda r: -r[2])]
    assert found == expected
    arrival = run.order("arrival")
    arrival = np.arange(len(documents)) if arrival is None else arrival
    expected = [row[:2] for q in run.query_ids for row in sorted((r for r in rows if r[0] == q), key=lambda r: -r[2])]
    assert [(of_query[i], documents[i]) for i in arrival] == expected


def test_the_top_of_a_query():
    run = Run.from_dict({"q": {"a": 1, "b": 3, "c": 3}, "r": {"x": 0}})
    assert run.top("q", 2) == [("c", 3), ("b", 3)]
    assert run.top("r", 5) == [("x", 0)]
    assert run.top("s", 5) == []


# What is repeated -----------------------------------------------------------------------------------------------------


def test_a_repeated_document_counts_once_at_its_best_rank():
    columns = (["q", "q", "q", "r"], ["a", "b", "a", "a"], [1.0, 2.0, 3.0, 4.0])
    with pytest.warns(UserWarning, match=r"x: 1 repeated document, for example 'a' of the query 'q'.*at its best rank"):
        run = Run.from_columns(*columns, name="x")
    assert run.to_dict() == {"q": {"b": 2.0, "a": 3.0}, "r": {"a": 4.0}}
    with pytest.raises(ValueError, match=r"1 repeated document, .* Without `strict` a repeated document"):
        Run.from_columns(*columns, strict=True)


@given(
    st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from("abc"), st.sampled_from([0.0, 1.0])), min_size=1),
    st.sampled_from([1, 2, 5, 1 << 16]),
)
def test_repeats_are_those_of_a_loop(rows, block):
    best: dict[str, dict[str, float]] = {}
    for query, document, score in rows:
        of_query = best.setdefault(query, {})
        of_query[document] = max(score, of_query.get(document, 0.0))
    with warnings.catch_warnings(record=True) as caught, mock.patch.object(runs, "_BLOCK", block):
        warnings.simplefilter("always")
        run = Run.from_columns(*zip(*rows, strict=True))
    assert run.to_dict() == best
    repeated = len(rows) - sum(map(len, best.values()))
    assert len(caught) == (repeated > 0)
    assert not caught or f" {repeated} repeated document" in str(caught[0].message)


def test_repeated_judgements_count_once_and_contradictory_ones_are_refused():
    with pytest.warns(UserWarning, match="1 repeated judgement, for example 'a' of the query 'q'"):
        judged = Judgements.from_columns(["q", "q", "q"], ["a", "b", "a"], [1, 0, 1])
    assert judged.to_dict() == {"q": {"a": 1.0, "b": 0.0}}
    with pytest.raises(
        ValueError, match=r"1 documents have judgements that contradict.*'a' of the query 'q': 1, 0\. Keep one"
    ):
        Judgements.from_columns(["q", "q", "q"], ["a", "b", "a"], [1, 0, 0])


# TREC files -----------------------------------------------------------------------------------------------------------

RUN = "q1 Q0 d#1 1 0.5 tag\nq1\tQ0  d2\t7   1e0 tag and more\n\n# a comment\n  q2 Q0 d1 1 -inf tag\n"


@pytest.mark.parametrize("text", [RUN, RUN.replace("\n", "\r\n"), RUN.rstrip("\n"), "\ufeff" + RUN, f"\n\n {RUN}"])
@pytest.mark.parametrize("piece", [1 << 25, 40, 7, 1])
def test_a_run_whatever_separates_it(text, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(trec, "_PIECE_BYTES", piece)
    run = read_trec_run(write(tmp_path / "bm25.txt", text))
    assert run.to_dict() == {"q1": {"d#1": 0.5, "d2": 1.0}, "q2": {"d1": -math.inf}}
    assert (run.name, run.tag) == ("bm25.txt", "tag")


def test_queries_that_come_back_later_in_the_file(tmp_path, monkeypatch):
    lines = [f"q{i % 3} Q0 d{i} 1 {i} t\n" for i in range(30)]
    path = write(tmp_path / "run", "".join(lines))
    whole = read_trec_run(path).to_dict()
    assert whole == {f"q{q}": {f"d{i}": float(i) for i in range(q, 30, 3)} for q in range(3)}
    monkeypatch.setattr(trec, "_PIECE_BYTES", 50)
    assert read_trec_run(path).to_dict() == whole


def test_gzip_is_told_by_the_content(tmp_path):
    path = write(tmp_path / "run.txt", gzip.compress(RUN.encode()))
    assert len(read_trec_run(path).documents) == 3
    packed = gzip.compress(RUN.encode() * 50)
    with pytest.raises(ValueError, match=r"run\.txt: a damaged gzip file"):
        read_trec_run(write(path, packed[: len(packed) // 2]))


def test_qrels_and_msmarco(tmp_path):
    judged = read_qrels(write(tmp_path / "qrels", "# x\n1 0 a#b 2\n1 0 c -1\n02 iter d 0.5\n"))
    assert judged.to_dict() == {"1": {"a#b": 2, "c": -1}, "02": {"d": 0.5}}
    run = read_msmarco_run(write(tmp_path / "run.tsv", "1\t900\t1\n1\t800\t2\n2\t900\t1\n"))
    assert run.to_dict() == {"1": {"900": -1, "800": -2}, "2": {"900": -1}}


def test_three_columns_that_end_in_a_score(tmp_path):
    path = write(tmp_path / "run", "# x\nq a 0.5\nq  b\t7\nr a -1e-3\n")
    with pytest.raises(ValueError, match=r"run:2: three columns are read as query, document and rank, but '0\.5'"):
        read_run(path)
    assert read_run(path, form="scores").to_dict() == {"q": {"a": 0.5, "b": 7}, "r": {"a": -0.001}}
    with pytest.warns(UserWarning, match="1 repeated document"):
        run = read_msmarco_run(write(path, "q a 2\nq a 2\nq b 1\n"))
    assert run.to_dict() == {"q": {"a": -2, "b": -1}}


def test_what_is_no_mapping_of_mappings():
    with pytest.raises(
        TypeError, match=r"Run\.from_dict takes \{query: \{document: score\}\}, got list for the query 'q'\."
    ):
        Run.from_dict({"q": ["d"]})
    with pytest.raises(TypeError, match=r"Judgements\.from_dict takes \{query: \{document: grade\}\}, got list\."):
        Judgements.from_dict([("q", {"d": 1})])


def test_quotes_are_characters_of_an_id(tmp_path):
    assert read_qrels(write(tmp_path / "q", "1 0 \"a 1\n1 0 b' 1\n")).to_dict() == {"1": {'"a': 1, "b'": 1}}


GOOD = "q Q0 d 1 0.5 t\n"


@pytest.mark.parametrize(
    ("reader", "text", "words"),
    [
        (read_trec_run, f"{GOOD}# x\nq Q0 e 1 0.4\n", r"file:3: a line of a run file must have 6 or more.*got 5: 'q Q0 e 1 0\.4'"),
        (read_trec_run, f"{GOOD}\nq Q0 e 1 high t\n", r"file:3: the score must be a number, got 'high'"),
        (read_trec_run, f"{GOOD}q Q0 e 1 1_0 t\n", r"file:2: the score must be a number, got '1_0'"),
        (read_trec_run, f"{GOOD}q Q0 e 1 nan t\n", r"file:2: the score is NaN"),
        (read_trec_run, "q 0 d 1\n", r"file:1: .* got 4.*looks like judgements"),
        (read_trec_run, "q,Q0,d,1,0.5,t\n", r"file:1: .* got 1.*It has commas"),
        (read_trec_run, "", r"file: there is no line in it"),
        (read_trec_run, "# only this\n\n", r"file: there is no line in it"),
        (read_trec_run, b"q Q0 \xff 1 0.5 t\n", r"file:1: the line is no UTF-8 text"),
        (read_qrels, GOOD, r"file:1: a line of a qrels file must have 4 columns.*got 6.*looks like a run\."),
        (read_qrels, "q 0 d 1\nq 0 e\n", r"file:2: .*got 3"),
        (read_qrels, "q 0 d yes\n", r"file:1: the grade must be a number, got 'yes'"),
        (read_qrels, "q 0 d 1\nq 0 d 2\n", r"file: 1 documents have judgements that contradict"),
        (read_msmarco_run, "1 2 3 4\n", r"file:1: .*3 columns"),
        (read_msmarco_run, "# x\n\nq d 1\nq e 0.5\n", r"file:4: .*'0\.5' can be no rank: a rank is a whole.*--run-format scores"),
        (read_msmarco_run, "q d 1\nq e -2\n", r"file:2: .*'-2' can be no rank: a rank is a whole number"),
        (read_msmarco_run, "q d 7\nr d 7\nq e 3\nq f 7.0\n", r"file:4: .*'7\.0' can be no rank: two documents of the query 'q'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1 << 25, 4])
def test_bad_files_are_named_by_line(reader, text, words, piece, tmp_path, monkeypatch):
    monkeypatch.setattr(trec, "_PIECE_BYTES", piece)
    with pytest.raises(ValueError, match=words):
        reader(write(tmp_path / "file", text))


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no file at '.*none'"):
        read_qrels(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="a directory, not a file"):
        read_qrels(tmp_path)


@given(lists=LISTS, suffix=st.sampled_from(["", ".gz"]))
@example(lists={"0": {"0": math.inf, "1": -math.inf}}, suffix="")
def test_what_is_written_reads_back(lists, suffix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out")
    lists = {f"q{query}": documents for query, documents in lists.items()}
    write_trec(folder / f"run{suffix}", Run.from_dict(lists))
    assert read_trec_run(folder / f"run{suffix}").to_dict() == lists
    grades = {q: {d: grade if math.isfinite(grade) else 1.0 for d, grade in of.items()} for q, of in lists.items()}
    write_trec(folder / f"qrels{suffix}", Judgements.from_dict(grades))
    assert read_qrels(folder / f"qrels{suffix}").to_dict() == grades


def test_a_run_is_written_by_rank_and_judgements_as_whole_numbers(tmp_path):
    write_trec(tmp_path / "run", Run.from_dict({"q": {"a": 1, "b": 2.5}, "r": {"c": 0}}, name="my run"))
    assert (tmp_path / "run").read_text() == "q Q0 b 1 2.5 my_run\nq Q0 a 2 1.0 my_run\nr Q0 c 1 0.0 my_run\n"
    write_trec(tmp_path / "qrels", Judgements.from_dict({"q": {"a": 1, "b": 0}}))
    assert (tmp_path / "qrels").read_text() == "q 0 a 1\nq 0 b 0\n"


def test_writing_keeps_what_is_there(tmp_path):
    path = write(tmp_path / "run", "before")
    with pytest.raises(FileExistsError, match=r"run exists"):
        write_trec(path, Run.from_dict({"q": {"a": 1}}), overwrite=False)
    for query, document in (("q", "a b"), ("q", ""), ("q", "a\tb"), ("q r", "a"), ("#q", "a")):
        with pytest.raises(ValueError, match="Blanks separate the columns"):
            write_trec(path, Run.from_dict({query: {document: 1}}))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
