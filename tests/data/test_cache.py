"""Converted data sets: the same as what was read, whole or not at all, whatever kills a process, fills a disk or flips a bit."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from lightning_rank.data import cache as cache_file
from lightning_rank.data import letor
from lightning_rank.data.batches import RankingDataset
from lightning_rank.data.cache import CacheError, Texts, convert, is_cache, open_cache
from lightning_rank.data.letor import read_letor

linux = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


def letor_text(queries: int = 20, features: int = 5, seed: int = 0, comments: bool = True, sparse: bool = False) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for query in range(queries):
        for item in range(int(rng.integers(1, 9))):
            listed = [j for j in range(features) if not sparse or rng.random() < 0.6]
            numbers = " ".join(f"{j + 1}:{rng.normal():.6f}" for j in listed)
            comment = f" # docid = d{query}-{item}" if comments else ""
            lines.append(f"{rng.integers(3)} qid:q{query} {numbers}{comment}\n")
    return "".join(lines)


def written(folder: Path, text: str | bytes, name: str = "train.txt") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def assert_same(left: RankingDataset, right: RankingDataset) -> None:
    for name in ("features", "grades", "offsets"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
        assert getattr(left, name).dtype == getattr(right, name).dtype
    assert list(left.query_ids) == list(right.query_ids)
    assert list(left.document_ids or []) == list(right.document_ids or [])
    rows = [torch.arange(len(data.grades)) if data.rows is None else data.rows for data in (left, right)]
    assert torch.equal(*rows)


# What is converted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comments", [True, False])
@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("chunk_bytes", [200, 1 << 23])
def test_a_converted_file_is_the_file(tmp_path, monkeypatch, comments, sparse, chunk_bytes):
    monkeypatch.setattr(letor, "_CHUNK_BYTES", chunk_bytes)
    path = written(tmp_path, letor_text(comments=comments, sparse=sparse))
    for num_features in (None, 7):
        data = open_cache(convert(path, tmp_path / "cache", num_features=num_features))
        assert_same(data, read_letor(path, num_features=num_features))
        assert (data.document_ids is None) != comments


def test_several_files_gzip_and_queries_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(letor, "_CHUNK_BYTES", 60)
    monkeypatch.setattr(cache_file, "_COPY_ITEMS", 2)
    one = written(tmp_path, "0 qid:b 1:10 #B1\n1 qid:a 1:11 #A1\n2 qid:b 2:12 #B2\n0 qid:ключ 1:13 #é\n", "1.txt")
    two = written(tmp_path, gzip.compress(b"1 qid:a 1:14 3:1 #A2\n2 qid:b 1:15 #B3\n"), "2.txt.gz")
    with pytest.warns(UserWarning, match=r"2 of 3 queries .*'b', which goes on at .*1\.txt:3"):
        data = open_cache(convert([one, two], tmp_path / "cache"))
    with pytest.warns(UserWarning, match="not contiguous"):
        assert_same(data, read_letor(one, two))
    assert data.rows.tolist() == [0, 2, 5, 1, 4, 3]


def test_what_the_reader_refuses_is_refused_and_leaves_nothing(tmp_path):
    path = written(tmp_path, letor_text() + "1 qid:1 1:x\n")
    lines = path.read_text().count("\n")
    with pytest.raises(ValueError, match=rf"train\.txt:{lines}: expected a number as feature 1, got '1:x'"):
        convert(path, tmp_path / "cache")
    assert not [entry for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    with pytest.raises(FileNotFoundError, match="No LETOR file"):
        convert(tmp_path / "none.txt", tmp_path / "cache")


def test_float16_halves_the_features_and_says_what_it_cannot_hold(tmp_path):
    path = written(tmp_path, letor_text())
    data = open_cache(convert(path, tmp_path / "cache", dtype="float16"))
    assert data.features.dtype == torch.float16
    assert torch.equal(data.features, read_letor(path).features.half())
    assert data[[0, 1]]["features"].dtype == torch.float32
    large = written(tmp_path, "1 qid:a 1:1 2:2\n0 qid:b 1:1 2:2\n0 qid:b 1:1 2:70000\n", "large.txt")
    with pytest.raises(ValueError, match=r"feature 2 is 70000 in query 'b', which begins at .*large\.txt:2"):
        convert(large, tmp_path / "cache", dtype="float16")


def test_the_key_is_of_content_and_options(tmp_path):
    path = written(tmp_path, letor_text())
    first = convert(path, tmp_path / "cache")
    stamp = (first / "features.npy").stat().st_mtime_ns
    assert convert(path, tmp_path / "cache") == first
    os.utime(path, (1, 1))
    assert convert(str(path), tmp_path / "cache") == first, "another time, the same content"
    assert convert(written(tmp_path, path.read_bytes(), "copy.txt"), tmp_path / "cache") == first
    assert (first / "features.npy").stat().st_mtime_ns == stamp, "it was not converted again"
    others = {convert(path, tmp_path / "cache", num_features=9), convert(path, tmp_path / "cache", dtype="float16")}
    others.add(convert([path, path], tmp_path / "two"))
    path.write_text(letor_text(seed=1))
    others.add(convert(path, tmp_path / "cache"))
    assert len({first.name, *(other.name for other in others)}) == 5


def test_arrays_are_numpy_files(tmp_path):
    path = written(tmp_path, letor_text())
    folder = convert(path, tmp_path / "cache")
    assert np.array_equal(np.load(folder / "features.npy", mmap_mode="r"), read_letor(path).features.numpy())
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["sources"][0]["name"] == "train.txt"
    assert manifest["items"] == len(np.load(folder / "grades.npy"))


def test_writing_into_the_tensors_does_not_change_the_files(tmp_path):
    folder = convert(written(tmp_path, letor_text()), tmp_path / "cache")
    data = open_cache(folder)
    data.features.zero_()
    data.grades.fill_(9)
    assert open_cache(folder, verify="full").features.abs().sum() > 0


def test_other_processes_open_the_files_rather_than_get_their_content(tmp_path):
    data = replace(
        open_cache(convert(written(tmp_path, letor_text(200)), tmp_path / "cache")), max_items=3, layout="jagged"
    )
    sent = pickle.dumps(data)
    assert len(sent) < 1000
    for again in (pickle.loads(sent), copy.deepcopy(data)):
        assert_same(again, data)
        assert (again.max_items, again.layout) == (3, "jagged")


def test_texts_are_a_sequence():
    words = ["", "é", "b", "", "cc"]
    encoded = [word.encode() for word in words]
    texts = Texts(np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(word) for word in encoded]))
    assert texts == words
    assert texts != [*words[:-1], "x"]
    assert texts[-1] == "cc"
    assert texts[1:3] == ["é", "b"]
    with pytest.raises(IndexError):
        texts[5]


def test_converted_data_in_a_folder_that_cannot_be_written_to_is_used(tmp_path, monkeypatch):
    path = written(tmp_path, letor_text())
    folder = convert(path, tmp_path / "cache")
    os.utime(path, (1, 1))  # its digest is not known by its facts any more

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    assert convert(path, tmp_path / "cache") == folder


# Tables ---------------------------------------------------------------------------------------------------------------


def table(rows: int = 50) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "title": [f"a text {i}" for i in range(rows)],
            "qid": np.arange(rows) // 7,
            "bm25": rng.random(rows),
            "label": rng.integers(0, 3, rows),
            "clicks": rng.integers(0, 99, rows),
            "score": rng.random(rows).astype("f4"),
            "doc_id": [f"d{i}" for i in range(rows)],
        }
    )


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.tsv"])
def test_a_table_is_converted_by_the_usual_names(tmp_path, monkeypatch, name):
    monkeypatch.setattr("lightning_rank.data.features._ROWS", 8)
    frame, path = table(), tmp_path / name
    {"parquet": frame.write_parquet, "csv": frame.write_csv}.get(
        path.suffix[1:], lambda p: frame.write_csv(p, separator="\t")
    )(path)
    with pytest.warns(UserWarning, match=rf"{re.escape(name)}: columns that hold no numbers .* left out: title\.$"):
        data = open_cache(convert(path, tmp_path / "cache"))
    assert data.manifest["feature_names"] == ["bm25", "clicks", "score"]
    expected = frame.select("bm25", "clicks", "score").to_numpy().astype("f4")
    assert np.array_equal(data.features.numpy(), expected)
    assert data.grades.tolist() == frame["label"].to_list()
    assert data.query_ids == [str(i) for i in range(8)]
    assert data.lengths.tolist() == [7] * 7 + [1]
    assert data.document_ids == frame["doc_id"].to_list()
    named = {"query": "title", "grade": "clicks", "document": "qid", "features": ["score", "bm25"]}
    data = open_cache(convert(path, tmp_path / "cache", columns=named))
    assert np.array_equal(data.features.numpy(), frame.select("score", "bm25").to_numpy().astype("f4"))
    assert data.query_ids[3] == "a text 3"


def test_what_is_missing_in_a_table_is_nan_where_it_may_be(tmp_path):
    frame = pl.DataFrame({"query": ["a", "a", "b"], "grade": [1, 0, 2], "x": [1.0, None, 3.0]})
    frame.write_parquet(tmp_path / "t.parquet")
    data = open_cache(convert(tmp_path / "t.parquet", tmp_path / "cache"))
    assert data.features.flatten().isnan().tolist() == [False, True, False]
    for part in ("grade", "query"):
        frame.with_columns(pl.when(pl.int_range(3) == 1).then(None).otherwise(pl.col(part)).alias(part)).write_parquet(
            tmp_path / f"{part}.parquet"
        )
        with pytest.raises(ValueError, match=rf"{part}\.parquet, row 2: the {part} must .*got None"):
            convert(tmp_path / f"{part}.parquet", tmp_path / "cache")


@pytest.mark.parametrize("missing", ["nan", "NaN", "NA", "na", " NaN", ""])
def test_what_is_missing_in_text_drops_no_column(tmp_path, missing):
    rows = f"query,grade,x,y\na,1,0.5,{missing}\na,0,,2\nb,0, 1,{missing}\n"
    data = open_cache(convert(written(tmp_path, rows, "t.csv"), tmp_path / "cache"))
    assert data.manifest["feature_names"] == ["x", "y"]
    nan = float("nan")
    assert np.array_equal(data.features.numpy(), [[0.5, nan], [nan, 2], [1, nan]], equal_nan=True)
    nothing = open_cache(convert(written(tmp_path, f"query,grade,x,y\na,1,0.5,{missing}\n", "n.csv"), tmp_path / "cache"))
    assert nothing.manifest["feature_names"] == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,grade,x,y\n1,1,1,abc\n1,0,2,3\n", r"t\.csv, row 1: the column y must hold numbers, got 'abc'.*--features"),
        ("query,grade,x,y\n1,1,1,3\n1,0,2,-\n", r"t\.csv, row 2: the column y must hold numbers, got '-'"),
        ("query,grade,x\n1,NA,1\n", "row 1: the grade must be a finite number, got nan"),
        ("q,grade,x\n1,1,1\n", "no column is the query by its name; there is q, grade, x"),
        ("query,grade,x\n1,1,1\n1,0,two\n", "row 2: the column x must hold numbers, got 'two'"),
        ("query,grade,x\n1,good,1\n", "row 1: the column grade must hold numbers, got 'good'"),
        ("query,grade\n1,1\n", "no column but the query, grade holds numbers"),
        ("query,grade,x\n1,inf,1\n", "row 1: the grade must be a finite number, got inf"),
        ("query,grade,x\n1,1,1,7\n", "cannot be read: "),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path, text, message):
    path = written(tmp_path, text, "t.csv")
    columns = {"features": ["x"]} if text.splitlines()[0].endswith(",x") else {}
    with pytest.raises(ValueError, match=message):
        convert(path, tmp_path / "cache", columns=columns)


def test_tables_of_one_data_set_have_the_same_features(tmp_path):
    one = written(tmp_path, "query,grade,x\n1,1,1\n", "1.csv")
    two = written(tmp_path, "query,grade,y\n1,1,1\n", "2.csv")
    with pytest.raises(ValueError, match=r"2\.csv: its features are y, those of the files before x"):
        convert([one, two], tmp_path / "cache")


# Damage ---------------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 16
    path.write_bytes(content)


FILES = ("features.npy", "grades.npy", "offsets.npy", "query_ids.npy", "query_ids_ends.npy", "document_ids.npy")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_damage_is_found_named_and_repaired(tmp_path, name, damage):
    path = written(tmp_path, letor_text())
    folder = convert(path, tmp_path / "cache")
    whole = {file.name: file.read_bytes() for file in folder.iterdir()}
    if name == "manifest.json" and damage is flip:
        (folder / name).write_text((folder / name).read_text().replace('"format"', '"fromat"'))
    else:
        damage(folder / name)
    if name == "manifest.json" and damage is Path.unlink:
        with pytest.raises(FileNotFoundError, match=r"no converted data set .* it has no manifest\.json"):
            open_cache(folder)
    else:
        with pytest.raises(CacheError, match=rf"{folder} is damaged: {name} .*Delete the folder and convert again\."):
            open_cache(folder)
    with pytest.warns(UserWarning, match="is converted again"):
        assert convert(path, tmp_path / "cache") == folder
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole


def test_a_changed_byte_in_the_middle_of_a_large_file_is_found_by_a_full_look(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_file, "_SMALL_BYTES", 100)
    monkeypatch.setattr(letor, "_CHUNK_BYTES", 100)
    folder = convert(written(tmp_path, letor_text(100)), tmp_path / "cache")
    content = bytearray((folder / "features.npy").read_bytes())
    content[len(content) // 2 - 30] ^= 1
    (folder / "features.npy").write_bytes(content)
    open_cache(folder)
    with pytest.raises(CacheError, match=r"features\.npy has changed between bytes [\d,]+ and [\d,]+\."):
        open_cache(folder, verify="full")


def test_a_note_of_a_digest_that_is_cut_short_is_made_anew(tmp_path):
    path = written(tmp_path, letor_text())
    folder = convert(path, tmp_path / "cache")
    (note,) = (tmp_path / "cache").glob(".*.source")
    note.write_text("abc")
    assert convert(path, tmp_path / "cache") == folder
    assert len(note.read_text()) == 64


# Real processes -------------------------------------------------------------------------------------------------------

CONVERT = "import sys; from lightning_rank.data.cache import convert; print(convert(sys.argv[1], sys.argv[2]))"
# As above, but slow enough to be met in the middle: a pause after every block that is written.
SLOWLY = """
import sys, time
from lightning_rank.data import cache, letor
letor._CHUNK_BYTES = 2000
add = cache._Writer.add
def slowly(self, rows):
    add(self, rows)
    self.file.flush()
    time.sleep(0.01)
cache._Writer.add = slowly
print(cache.convert(sys.argv[1], sys.argv[2]))
"""


def started(code: str, *args: object, **options: object) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options)


def unfinished(cache: Path) -> list[Path]:
    return [path for path in cache.glob(".*.part") if (path / "features.npy").exists()]


def wait_for(what, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@linux
def test_killed_in_the_middle_it_leaves_nothing_that_is_taken_for_data_and_the_next_one_clears_up(tmp_path):
    path, cache = written(tmp_path, letor_text(500)), tmp_path / "cache"
    for written_bytes in (0, 3000, 12000):
        process = started(SLOWLY, path, cache)
        wait_for(lambda: any((p / "features.npy").stat().st_size > written_bytes for p in unfinished(cache)))  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert unfinished(cache), "the kill came too late to test anything"
        assert not [entry for entry in cache.iterdir() if is_cache(entry)]
    data = open_cache(convert(path, cache), verify="full")
    assert_same(data, read_letor(path))
    assert not list(cache.glob(".*.part")), "what was left is removed"


@linux
def test_of_processes_that_start_together_one_converts_and_all_get_it(tmp_path):
    path, cache = written(tmp_path, letor_text(300)), tmp_path / "cache"
    counted = SLOWLY + "\nimport os\n" + "print(os.environ.get('WROTE', ''))\n"
    counted = counted.replace(
        "    add(self, rows)\n", "    import os; os.environ['WROTE'] = 'wrote'\n    add(self, rows)\n"
    )
    processes = [started(counted, path, cache) for _ in range(4)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    folders = {output.splitlines()[0] for output, _ in outputs}
    assert len(folders) == 1
    assert sum("wrote" in output for output, _ in outputs) == 1
    assert_same(open_cache(folders.pop(), verify="full"), read_letor(path))
    assert not list(cache.glob(".*.part"))


@linux
def test_one_that_waits_goes_on_when_the_one_that_converts_is_killed(tmp_path):
    path, cache = written(tmp_path, letor_text(500)), tmp_path / "cache"
    first = started(SLOWLY, path, cache)
    wait_for(lambda: unfinished(cache))
    second = started(CONVERT, path, cache)
    time.sleep(0.3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    output, error = second.communicate(timeout=60)
    assert second.returncode == 0, error
    assert_same(open_cache(output.strip(), verify="full"), read_letor(path))


@linux
def test_a_file_size_limit_is_told_and_leaves_nothing(tmp_path):
    path, cache = written(tmp_path, letor_text(2000)), tmp_path / "cache"

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    process = started(CONVERT, path, cache, preexec_fn=limit)
    _, error = process.communicate()
    assert process.returncode == 1
    assert "no room to convert train.txt" in error
    assert "nothing was left behind" in error
    assert not [entry for entry in cache.iterdir() if entry.is_dir()]
    assert_same(open_cache(convert(path, cache)), read_letor(path))


@linux
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path):
    path, disk = written(tmp_path, letor_text(2000)), tmp_path / "disk"
    disk.mkdir()
    inside = (
        f"mount -t tmpfs -o size=128k tmpfs {disk} && {sys.executable} -m lightning_rank.cli data convert {path} "
        f"--cache {disk}/cache; echo status $?; ls {disk}/cache; exit 0"
    )
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no namespace of its own for a small disk")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inside], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout == "status 1\n", "the folder is as empty as before"
    assert done.stderr.startswith("lightning-rank: error: [Errno 28] no room to convert train.txt (0.00 GB of text)")
    assert len(done.stderr.splitlines()) == 1
