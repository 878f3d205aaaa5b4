"""LETOR files: what is read, what is refused, and with which words."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_svmlight_file

from lightning_rank.data import letor
from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.letor import read_letor

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def write(folder: Path, text: str | bytes, name: str = "data.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(folder: Path, text: str | bytes, num_features: int | None = None) -> RankingDataset:
    """The data; no warning may come with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_letor(write(folder, text), num_features=num_features)


def regular_text(num_items: int = 200, num_features: int = 20, seed: int = 0) -> str:
    """Dense, sorted, with integer query ids, as the published sets."""
    rng = np.random.default_rng(seed)
    query = np.sort(rng.integers(1, 12, num_items))
    values = np.where(rng.random((num_items, num_features)) < 0.3, 0, rng.normal(size=(num_items, num_features)) * 100)
    return "".join(
        f"{rng.integers(5)} qid:{query[i]} {' '.join(f'{j + 1}:{values[i, j]:.6f}' for j in range(num_features))}\n"
        for i in range(num_items)
    )


def assert_same(left: RankingDataset, right: RankingDataset) -> None:
    for name in ("features", "grades", "offsets", "rows"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    assert left.query_ids == right.query_ids
    assert left.document_ids == right.document_ids


# What is read ---------------------------------------------------------------------------------------------------------


def test_reads_every_part_of_a_line(tmp_path):
    data = read(
        tmp_path,
        "0 qid:10 1:0.5 3:-1e-2 #docid = GX008-86-4444840 inc = 1 prob = 0.086622\n"
        "2 qid:10 2:.25 4:+7 # docid=GX037 inc = 0.0031586555555558\n"
        "1.5 qid:9\n",
    )
    torch.testing.assert_close(
        data.features, torch.tensor([[0.5, 0, -0.01, 0], [0, 0.25, 0, 7], [0, 0, 0, 0]]), rtol=0, atol=0
    )
    assert data.features.dtype == data.grades.dtype == torch.float32
    assert data.offsets.dtype == data.rows.dtype == torch.int64
    assert data.grades.tolist() == [0, 2, 1.5]
    assert data.offsets.tolist() == [0, 2, 3]
    assert data.query_ids == ["10", "9"]
    assert data.document_ids == ["GX008-86-4444840", "GX037", ""]
    assert data.rows.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("comment", "document_id"),
    [
        ("# docid = D7 inc = 1", "D7"),
        ("#docid=D7", "D7"),
        ("# inc = 1 docid = D7", "D7"),
        ("# D7 and more", "D7"),
        ("#D7", "D7"),
        ("## D7", "D7"),
        ("# http://a/#b c", "http://a/#b"),
        ("# nodocid = 3", "nodocid"),
        ("# docid =", ""),
        ("#", ""),
    ],
)
def test_document_id(tmp_path, comment, document_id):
    data = read(tmp_path, f"1 qid:1 1:1 {comment}\n0 qid:1 1:2#other\n")
    assert data.document_ids == [document_id, "other"]


def test_no_document_ids(tmp_path):
    assert read(tmp_path, "1 qid:1 1:1\n0 qid:1 1:2 #\n").document_ids is None


@pytest.mark.parametrize("features", ["3:3 1:1 2:2", "1:1 2:2 3:3", "2:2 3:3 1:1"])
@pytest.mark.parametrize("space", [" ", "\t", "   "])
def test_features_in_any_order(tmp_path, features, space):
    line = f"1 qid:1 {features}\n".replace(" ", space)
    assert read(tmp_path, "0 qid:1 1:5\n" + line).features.tolist() == [[5, 0, 0], [1, 2, 3]]


def test_query_ids_are_text(tmp_path):
    ids = ["q-17", "007", "7", "7.0", "-1", "ключ", "a:b", "c#", "qid:1", "12345678901234567890123"]
    data = read(tmp_path, "".join(f"0 qid:{query} 1:1\n" for query in ids))
    assert data.query_ids == ids
    assert data.offsets.tolist() == list(range(len(ids) + 1))


def test_hash_after_a_value_starts_the_comment(tmp_path):
    data = read(tmp_path, "1 qid:1 1:1#D1 2:x qid:2\n")
    assert data.features.tolist() == [[1]]
    assert data.document_ids == ["D1"]


TEXT = "# made by hand\n\n1 qid:1 1:1 # A\n   \n  # between\n0 qid:1 2:2 # B\n2 qid:2 1:3 2:4 # C\n\n"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lines.txt", lambda text: text),
        ("crlf.txt", lambda text: text.replace(b"\n", b"\r\n")),
        ("unfinished.txt", lambda text: text.rstrip()),
        ("marked.txt", lambda text: b"\xef\xbb\xbf" + text),
        ("data.txt.gz", gzip.compress),
        ("gzip_by_content.txt", gzip.compress),
        ("text_by_content.gz", lambda text: text),
        ("two_members.gz", lambda text: gzip.compress(text[:50]) + gzip.compress(text[50:])),
    ],
)
def test_ways_to_write_the_same(tmp_path, name, change):
    data = read_letor(write(tmp_path, change(TEXT.encode()), name))
    assert_same(data, read(tmp_path, TEXT))
    assert data.features.tolist() == [[1, 0], [0, 2], [3, 4]]
    assert data.query_ids == ["1", "2"]
    assert data.document_ids == ["A", "B", "C"]
    assert data.rows.tolist() == [0, 1, 2]


def test_paths_may_be_text(tmp_path):
    assert_same(read_letor(str(write(tmp_path, TEXT))), read(tmp_path, TEXT))


@pytest.mark.parametrize("chunk_bytes", [1, 30, 60, 1000])
@pytest.mark.parametrize("text", [TEXT, regular_text(40, 5), "2 qid:5 3:1 1:2\n" + regular_text(20, 5)])
def test_chunks_do_not_matter(tmp_path, monkeypatch, chunk_bytes, text):
    whole = read(tmp_path, text)
    monkeypatch.setattr(letor, "_CHUNK_BYTES", chunk_bytes)
    assert_same(read(tmp_path, text), whole)
    with pytest.raises(ValueError, match=rf"data\.txt:{text.count(chr(10)) + 1}: .*qid:ID"):
        read(tmp_path, text + "0 1:1\n")


def test_bytes_that_are_not_utf8(tmp_path):
    data = read(tmp_path, b"1 qid:caf\xe9 1:1 # docid = r\xe9sum\xe9 \xff\xfe\n0 qid:caf\xc3\xa8 1:2 # \xff\n# \xff\n")
    assert data.query_ids == ["café", "cafè"]
    assert data.document_ids == ["résumé", "ÿ"]


def test_num_features(tmp_path):
    text = "1 qid:1 1:1 3:3\n0 qid:1 2:2\n"
    assert read(tmp_path, text).features.shape == (2, 3)
    assert read(tmp_path, text, num_features=3).features.shape == (2, 3)
    wide = read(tmp_path, text, num_features=5)
    assert wide.features.tolist() == [[1, 0, 3, 0, 0], [0, 2, 0, 0, 0]]
    with pytest.raises(
        ValueError, match=r"data\.txt:1: expected a feature index from 1 to 2 \(`num_features`\), got '3:3'"
    ):
        read(tmp_path, text, num_features=2)


def test_no_feature_at_all(tmp_path):
    assert read(tmp_path, "1 qid:1\n0 qid:1\n").features.shape == (2, 0)
    assert read(tmp_path, "1 qid:1\n0 qid:1\n", num_features=2).features.tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("num_features", [0, -1, 2.5, "3"])
def test_bad_num_features(tmp_path, num_features):
    with pytest.raises(ValueError, match=r"`num_features` must be None or a whole number of at least 1, got"):
        read(tmp_path, TEXT, num_features=num_features)


# Several files, and queries in pieces ---------------------------------------------------------------------------------


def test_files_in_order(tmp_path):
    first = write(tmp_path, "0 qid:b 1:1 #B1\n1 qid:a 1:2 #A1", "1.txt")
    second = write(tmp_path, gzip.compress(b"# comment\n2 qid:c 2:3\n"), "2.txt")
    data = read_letor(first, second)
    assert data.query_ids == ["b", "a", "c"]
    assert data.features.tolist() == [[1, 0], [2, 0], [0, 3]]
    assert data.document_ids == ["B1", "A1", ""]
    assert data.rows.tolist() == [0, 1, 2]


def test_query_in_pieces_is_merged_with_one_warning(tmp_path):
    start = "# head\n0 qid:b 1:10 #B1\n1 qid:a 1:11 #A1\n\n"
    path = write(tmp_path, start + "2 qid:b 1:12 #B2\n0 qid:c 1:13 #C1\n1 qid:a 1:14 #A2\n2 qid:b 1:15 #B3\n")
    with pytest.warns(UserWarning, match="not contiguous") as caught:
        data = read_letor(path)
    (warning,) = caught
    assert "2 of 3 queries" in str(warning.message)
    assert f"'b', which goes on at {path}:5" in str(warning.message)
    assert warning.filename == __file__
    assert data.query_ids == ["b", "a", "c"]
    assert data.offsets.tolist() == [0, 3, 5, 6]
    assert data.rows.tolist() == [0, 2, 5, 1, 4, 3]
    assert data.features[:, 0].tolist() == [10, 12, 15, 11, 14, 13]
    assert data.grades.tolist() == [0, 2, 2, 1, 1, 0]
    assert data.document_ids == ["B1", "B2", "B3", "A1", "A2", "C1"]


def test_query_that_goes_on_in_another_file_is_merged_with_the_warning(tmp_path):
    first = write(tmp_path, "0 qid:1 1:1\n1 qid:2 1:2\n", "S1.txt")
    second = write(tmp_path, "2 qid:2 1:3\n1 qid:3 1:4\n", "S2.txt")
    with pytest.warns(UserWarning, match=rf"1 of 3 queries .*'2', which goes on at {re.escape(str(second))}:1"):
        data = read_letor(first, second)
    assert data.offsets.tolist() == [0, 1, 3, 4]
    assert data.rows.tolist() == [0, 1, 2, 3]


def test_scores_go_back_to_the_order_of_the_input(tmp_path):
    with pytest.warns(UserWarning, match="not contiguous"):
        data = read_letor(write(tmp_path, "".join(f"0 qid:{i % 3} 1:{i}\n" for i in range(20))))
    scores = torch.empty(20)
    scores[data.rows] = data.features[:, 0]
    assert scores.tolist() == list(range(20))


# Wrong paths ----------------------------------------------------------------------------------------------------------


def test_no_path():
    with pytest.raises(ValueError, match="at least one path"):
        read_letor()


def test_missing_file_names_what_is_near(tmp_path):
    for name in ("train.txt", "vali.txt", "notes.md"):
        write(tmp_path, TEXT, name)
    with pytest.raises(FileNotFoundError) as error:
        read_letor(tmp_path / "train.txt", tmp_path / "trian.txt")
    assert f"No LETOR file '{tmp_path / 'trian.txt'}'" in str(error.value)
    assert "'train.txt'" in str(error.value)
    assert "notes.md" not in str(error.value)
    with pytest.raises(FileNotFoundError, match=r"the directory holds 'notes\.md', 'train\.txt', 'vali\.txt'"):
        read_letor(tmp_path / "0000")


def test_missing_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match=rf"no directory '{re.escape(str(tmp_path / 'nowhere'))}' either"):
        read_letor(tmp_path / "nowhere" / "train.txt")


def test_directory_instead_of_a_file(tmp_path):
    write(tmp_path, TEXT, "S1.txt")
    with pytest.raises(FileNotFoundError, match=rf"got the directory '{re.escape(str(tmp_path))}'; it holds 'S1\.txt'"):
        read_letor(tmp_path)


UP_TO_A_MILLION = "expected a feature index from 1 to 1000000 (declare more as `num_features`)"


# Wrong lines ----------------------------------------------------------------------------------------------------------

GOOD = "# head\n1 qid:1 1:0.5 2:1 3:2 # A\n"
BAD_LINES = {
    # no query id, or a malformed one
    "0 1:1 2:2": "expected qid:ID after the grade, got '1:1'",
    "0": "expected qid:ID after the grade, got nothing",
    "0 # qid:1": "expected qid:ID after the grade, got nothing",
    "0 qid: 1:1": "expected qid:ID after the grade, got 'qid:'",
    "0 qd:3 1:1": "expected qid:ID after the grade, got 'qd:3'",
    "0 QID:3 1:1": "expected qid:ID after the grade, got 'QID:3'",
    "0 qid 1:1": "expected qid:ID after the grade, got 'qid'",
    "0 1:1 qid:3": "expected qid:ID after the grade, got '1:1'",
    # the grade
    "qid:1 1:1": "expected a number as grade, got 'qid:1'",
    "x qid:1 1:1": "expected a number as grade, got 'x'",
    "1,2 qid:1 1:1": "expected a number as grade, got '1,2'",
    "1_0 qid:1 1:1": "expected a number as grade, got '1_0'",
    "nan qid:1 1:1": "expected a number as grade that is finite in float32, got 'nan'",
    "-inf qid:1 1:1": "expected a number as grade that is finite in float32, got '-inf'",
    "1e999 qid:1 1:1": "expected a number as grade that is finite in float32, got '1e999'",
    "1e39 qid:1 1:1": "expected a number as grade that is finite in float32, got '1e39'",
    # the feature index
    "0 qid:1 0:1": f"{UP_TO_A_MILLION}, got '0:1'",
    "0 qid:1 1:1 -2:1": f"{UP_TO_A_MILLION}, got '-2:1'",
    "0 qid:1 999999999:1": f"{UP_TO_A_MILLION}, got '999999999:1'",
    "0 qid:1 99999999999:1": f"{UP_TO_A_MILLION}, got '99999999999:1'",
    "0 qid:1 99999999999999999999999:1": f"{UP_TO_A_MILLION}, got '99999999999999999999999:1'",
    "0 qid:1 1:1 2:2 1:1": "expected each feature index once, got 1 again in '1:1'",
    "0 qid:1 1:1 01:2": "expected each feature index once, got 1 again in '01:2'",
    "0 qid:1 1.5:1": "expected index:value, the index a whole number, got '1.5:1'",
    "0 qid:1 1e1:1": "expected index:value, the index a whole number, got '1e1:1'",
    "0 qid:1 1_0:1": "expected index:value, the index a whole number, got '1_0:1'",
    "0 qid:1 one:1": "expected index:value, the index a whole number, got 'one:1'",
    "0 qid:1 :1": "expected index:value, the index a whole number, got ':1'",
    "0 qid:1 1:1 2": "expected index:value, the index a whole number, got '2'",
    "0 qid:1 qid:2 1:1": "expected index:value, the index a whole number, got 'qid:2'",
    "0 qid:1 1:1 \0": r"expected index:value, the index a whole number, got '\\x00'",
    "0 qid:1 1:1\r0 qid:1 1:2": "expected index:value, the index a whole number, got '0'",
    # the value
    "0 qid:1 1:1 2:x": "expected a number as feature 2, got '2:x'",
    "0 qid:1 2:": "expected a number as feature 2, got '2:'",
    "0 qid:1 2: 1": "expected a number as feature 2, got '2:'",
    "0 qid:1 2:1:3": "expected a number as feature 2, got '2:1:3'",
    "0 qid:1 2:0x1": "expected a number as feature 2, got '2:0x1'",
    "0 qid:1 2:1_0": "expected a number as feature 2, got '2:1_0'",
    "0 qid:1 1:1 2:nan": "expected a number as feature 2 that is finite in float32, got '2:nan'",
    "0 qid:1 2:-Infinity": "expected a number as feature 2 that is finite in float32, got '2:-Infinity'",
    "0 qid:1 2:1e999": "expected a number as feature 2 that is finite in float32, got '2:1e999'",
    "0 qid:1 2:-1e39": "expected a number as feature 2 that is finite in float32, got '2:-1e39'",
}


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_line(tmp_path, line):
    text = f"{GOOD}\n{line}\n" + GOOD
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / 'data.txt'))}:4: ") as error:
        read(tmp_path, text)
    assert str(error.value).endswith(f": {BAD_LINES[line]}.".replace(r"\\", "\\"))


def test_the_first_of_several_bad_lines_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data\.txt:3: expected a number as feature 1"):
        read(tmp_path, GOOD + "0 qid:1 1:x\n0 1:1\nnan qid:1\n")


def test_the_right_file_of_several_is_named(tmp_path):
    paths = [write(tmp_path, text, name) for name, text in (("a.txt", TEXT), ("b.txt", "1 qid:1 1:1\n0 1:1\n"))]
    with pytest.raises(ValueError, match=r"b\.txt:2: expected qid:ID"):
        read_letor(*paths)


def test_a_line_without_query_id_among_regular_ones(tmp_path):
    """scikit-learn takes this silently and returns fewer query ids than items."""
    lines = regular_text().splitlines(keepends=True)
    lines[120] = re.sub(r"qid:\d+ ", "", lines[120])
    assert load_svmlight_file(str(write(tmp_path, "".join(lines))), query_id=True)[2].shape == (len(lines) - 1,)
    with pytest.raises(ValueError, match=r"data\.txt:121: expected qid:ID after the grade, got '1:"):
        read(tmp_path, "".join(lines))


def test_a_long_token_is_shown_in_part(tmp_path):
    with pytest.raises(ValueError, match="expected a number as grade") as error:
        read(tmp_path, b"\x93" * 100_000)
    assert len(str(error.value)) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("text", ["", "\n\n", "# only\n# comments\n", "   ", "# no newline", gzip.compress(b"", mtime=0)])
def test_no_items(tmp_path, text):
    with pytest.raises(ValueError, match=r"data\.txt: expected at least one item, got an empty file"):
        read(tmp_path, text)


def test_an_empty_file_among_others(tmp_path):
    with pytest.raises(ValueError, match=r"empty\.txt: expected at least one item"):
        read_letor(write(tmp_path, TEXT), write(tmp_path, "", "empty.txt"))


# Files that end in mid-line -------------------------------------------------------------------------------------------

CUT = "the file seems cut short: its last line has no newline"


@pytest.mark.parametrize(
    "end", ["0", "0 ", "0 q", "0 qid:", "0 qid:1 1:1 2", "0 qid:1 1:1 2:", "0 qid:1 1:-", "0 qid:1 1:2e"]
)
def test_malformed_end(tmp_path, end):
    sparse = "1 qid:1 1:0.5 7:1\n2 qid:1 2:1\n"
    with pytest.raises(ValueError, match=rf"data\.txt:3: expected .*got .*; {CUT}\."):
        read(tmp_path, sparse + end)
    with pytest.raises(ValueError, match=r"data\.txt:3: expected") as error:
        read(tmp_path, sparse + end + "\n")
    assert CUT not in str(error.value)


@pytest.mark.parametrize("end", ["0 x 1:1", "0 qid:1 1:x 2:1", "0 qid:1 1:1 2:nan", "0 qid:1 0:1", "x qid:1 1:1", "0 # x"])
def test_an_error_that_is_not_at_the_end_is_no_cut(tmp_path, end):
    with pytest.raises(ValueError, match=r"data\.txt:2: expected") as error:
        read(tmp_path, "1 qid:1 1:0.5 7:1\n" + end)
    assert CUT not in str(error.value)


@pytest.mark.parametrize("features", ["1:1 2:2 3:3", "3:3 1:1 2:2"])
def test_last_line_that_lacks_the_usual_features(tmp_path, features):
    regular = f"1 qid:1 {features}\n0 qid:1 {features}\n"
    tail = f"2 qid:12 {features}"
    for end in (features[:-4], features[:4], ""):
        with pytest.raises(ValueError, match=rf"data\.txt:3: expected 3 features, as on every line before, got \d; {CUT}"):
            read(tmp_path, f"{regular}2 qid:1 {end}")
    assert read(tmp_path, regular + tail).features.shape == (3, 3)
    assert read(tmp_path, f"{regular}2 qid:1 {features[:4]}\n").features.shape == (3, 3)


def test_last_line_that_lacks_the_comment_all_others_have(tmp_path):
    text = "1 qid:1 1:1 2:2 # A\n0 qid:1 2:2 # B\n"
    with pytest.raises(ValueError, match=rf"data\.txt:3: expected a comment, as on every line before, got none; {CUT}"):
        read(tmp_path, text + "0 qid:1 1:1 2:2")
    assert read(tmp_path, text + "0 qid:1 1:1 2:2 # C").document_ids == ["A", "B", "C"]
    assert read(tmp_path, text + "0 qid:1 1:1 2:2\n").document_ids == ["A", "B", ""]


@pytest.mark.parametrize(
    "text",
    [
        "1 qid:1 1:1 2:2",
        "1 qid:1 1:1 2:2\n0 qid:1 1:1 2:2",
        "1 qid:1 1:1 2:2\n0 qid:1 1:1\n0 qid:1 1:1",  # sparse
        "1 qid:1 1:1 2:2\n0 qid:1 2:2",  # a cut takes the end of a line, not feature 1
        "1 qid:1 1:1 2:2\n0 qid:1 1:1 3:2",
        "1 qid:1 1:1 2:2 # A\n1 qid:1 1:1 2:2 # B\n0 qid:1 1:1 # C",  # the features end where the comment begins
        "1 qid:1 1:1 2:2 # A\n0 qid:1 1:1 2:2\n0 qid:1 1:1 2:2",
        "1 qid:1 1:1 2:2\n0 qid:1 1:1 2:2\n# comment",
    ],
)
def test_a_whole_last_line_needs_no_newline(tmp_path, text):
    assert_same(read(tmp_path, text), read(tmp_path, text + "\n"))


def test_every_cut_through_features_is_found(tmp_path):
    text = regular_text(6, 4).rstrip()
    last_feature = text.rindex(" 4:")
    for end in range(text.rindex("\n") + 2, last_feature + 3):
        with pytest.raises(ValueError, match=rf"data\.txt:6: .*{CUT}"):
            read(tmp_path, text[:end])


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:60] + bytes(40) + data[100:]])
def test_damaged_gzip(tmp_path, damage):
    path = write(tmp_path, damage(gzip.compress(regular_text().encode())), "data.gz")
    with pytest.raises(ValueError, match=r"data\.gz: expected a whole gzip file, got one cut short or damaged"):
        read_letor(path)


# Against scikit-learn, a round trip, real data ------------------------------------------------------------------------


@pytest.mark.parametrize("comment", ["", " #docid = GX1 inc = 1"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_load_svmlight_file_on_regular_data(tmp_path, seed, comment):
    path = write(tmp_path, regular_text(seed=seed).replace("\n", f"{comment}\n"))
    features, grades, query = load_svmlight_file(str(path), query_id=True, dtype=np.float32, zero_based=False)
    data = read_letor(path)
    assert np.array_equal(data.features.numpy(), features.toarray())
    assert np.array_equal(data.grades.numpy(), grades)
    assert np.array_equal(np.repeat(np.array(data.query_ids, int), data.offsets.diff().numpy()), query)


def test_the_strict_reader_reads_the_same(tmp_path, monkeypatch):
    fast = read(tmp_path, regular_text())
    monkeypatch.setattr(letor, "_read_fast", lambda texts, num_features: None)
    assert_same(read(tmp_path, regular_text()), fast)


WORDS = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=5)


@st.composite
def items(draw: st.DrawFn) -> tuple[float, str, list[tuple[int, float]], str]:
    """Grade, query id, features in the order of the text, document id."""
    features = draw(st.dictionaries(st.integers(1, 12), FLOAT32, max_size=6))
    order = draw(st.permutations(list(features)))
    word = WORDS.filter(lambda word: not word.startswith("#") and "docid" not in word)
    return draw(FLOAT32), draw(WORDS), [(index, features[index]) for index in order], draw(st.just("") | word)


@given(st.lists(items(), min_size=1, max_size=12), st.sampled_from(["\n", "\r\n", "\n\n# comment\n"]), st.data())
def test_round_trip(lines: Sequence[tuple[float, str, list[tuple[int, float]], str]], newline: str, data: st.DataObject):
    text = "".join(
        " ".join(
            [repr(grade), f"qid:{query}", *(f"{i}:{value!r}" for i, value in features), *(["# " + word] if word else [])]
        )
        + newline
        for grade, query, features, word in lines
    )
    num_features = max([index for _, _, features, _ in lines for index, _ in features], default=0)
    declared = data.draw(st.none() | st.integers(max(num_features, 1), 15))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = read_letor(write(Path(folder), text), num_features=declared)

    queries = list(dict.fromkeys(query for _, query, _, _ in lines))
    rows = sorted(range(len(lines)), key=lambda row: queries.index(lines[row][1]))
    expected = np.zeros((len(lines), declared or num_features), np.float32)
    for place, row in enumerate(rows):
        for index, value in lines[row][2]:
            expected[place, index - 1] = value
    assert result.query_ids == queries
    assert result.rows.tolist() == rows
    assert np.array_equal(result.features.numpy(), expected)
    assert result.grades.tolist() == [lines[row][0] for row in rows]
    assert result.offsets.diff().tolist() == [sum(query == line[1] for line in lines) for query in queries]
    assert (result.document_ids or [""] * len(lines)) == [lines[row][3] for row in rows]


TOKENS = st.sampled_from(
    [
        "0.5",
        "-1e-3",
        "+7",
        ".25",
        "5.",
        "1e400",
        "nan",
        "inf",
        "1_0",
        "0x1",
        "",
        "x",
        "1.0000000596046448",
        "3.4e38",
        "3.5e38",
    ]
)
INDEXES = st.sampled_from(["1", "2", "3", "03", "+2", "0", "-1", "2.0", "", "99999999999999999999"])
SEPARATORS = st.sampled_from([" ", " ", " ", "\t", "  ", ":", "\v", "\f"])


@st.composite
def nearly_alike(draw: st.DrawFn) -> str:
    """Lines that list the same features, of which some have something unusual in them."""
    listed = draw(st.lists(st.sampled_from("123"), min_size=1, max_size=3, unique=True))
    lines = []
    for _ in range(draw(st.integers(1, 4))):
        odd = draw(st.integers(0, 3)) == 0
        blank = draw(SEPARATORS) if odd else " "
        query = (
            draw(st.sampled_from(["1", "2", "a:b", "a:1:0.5", "c#", "é", "qid"])) if odd else draw(st.sampled_from("12"))
        )
        values = [f"{i}:{draw(TOKENS) if odd else 0.5}" for i in listed]
        if odd and draw(st.booleans()):
            values[-1] = f"{draw(INDEXES)}{draw(st.sampled_from(':; '))}{draw(TOKENS)}"
        mark = draw(st.sampled_from(["qid:", "qid:", "qid", "QID:", "quid:"])) if odd else "qid:"
        end = (
            draw(st.sampled_from(["", " ", " #d1", "#docid = d2", "\r", " 7"]))
            if odd
            else draw(st.sampled_from(["", " #d"]))
        )
        lines.append(f"{draw(TOKENS) if odd else 1} {mark}{query} {blank.join(values)}{end}")
    return "\n".join(lines) + draw(st.sampled_from(["\n", "\n", "", "\n\n"]))


@settings(max_examples=400)
@given(nearly_alike())
def test_the_table_reader_reads_and_refuses_what_the_others_do(text):
    def outcome() -> RankingDataset | str:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                return read_letor(write(Path(folder), text))
            except ValueError as error:
                return str(error).replace(folder, "")

    found = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(letor, "_parse_alike", lambda *_: None)
        expected = outcome()
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
    else:
        assert_same(found, expected)


@pytest.mark.parametrize("comments", [True, False])
def test_lines_that_are_alike_are_read_by_the_table_reader(tmp_path, monkeypatch, comments):
    text = regular_text()
    expected = load_svmlight_file(str(write(tmp_path, text, "plain.txt")), dtype=np.float32, n_features=20)[0].toarray()
    monkeypatch.setattr(letor, "_read_fast", None)  # called, it would fail
    text = text.replace("\n", " #docid = D1\n") if comments else text
    data = read(tmp_path, text)
    assert np.array_equal(data.features.numpy(), expected)
    assert data.document_ids == (["D1"] * 200 if comments else None)


def test_without_polars_lines_are_read_all_the_same(tmp_path, monkeypatch):
    expected = read(tmp_path, regular_text())
    monkeypatch.setitem(sys.modules, "polars", None)
    assert_same(read(tmp_path, regular_text()), expected)


def test_the_import_is_light():
    code = "import sys, lightning_rank.data.letor; sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


FOLDER = os.environ.get("LIGHTNING_RANK_DATA")


@pytest.mark.skipif(not FOLDER, reason="LIGHTNING_RANK_DATA does not name the folder that holds mq2008/S1.txt")
def test_mq2008():
    paths = [Path(FOLDER or "", "mq2008", f"S{part}.txt") for part in range(1, 6)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = read_letor(*paths)
    assert data.features.shape == (15_211, 46)
    assert len(data.query_ids) == 784
    relevant = torch.stack([grades.max() > 0 for grades in data.grades.split(data.offsets.diff().tolist())])
    assert (~relevant).sum() == 220
    assert data.query_ids[0] == "10002"
    assert data.document_ids is not None
    assert data.document_ids[0] == "GX008-86-4444840"
    assert all(data.document_ids)
    plain = [
        load_svmlight_file(str(path), dtype=np.float32, zero_based=False, n_features=46)[0].toarray() for path in paths
    ]
    assert np.array_equal(data.features.numpy(), np.concatenate(plain))
