"""A small text re-ranker trained from scratch on what BM25 retrieves, with ApproxNDCG.

python examples/text_reranker.py                        # text that needs no download: docstrings of installed packages
python examples/text_reranker.py --cranfield cranfield  # a folder with cran.all.1400, cran.qry and cranqrel

A query is the first paragraph of a docstring, and what should be found is the rest of it, among the rest of all others. BM25 gives
the candidates and is the baseline; a query without a relevant candidate counts 0 for both. The re-ranker is a small network over
scores of each pair of texts: BM25, the likeness of words, of pairs of words and of parts of words, lengths.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_rank import ApproxNDCGLoss, MLPScorer, RankingDataset, RankingModule, RankingMonitor
from lightning_rank.report.tables import print_table

METRICS = ["ndcg@10", "mrr@10", "recall@5"]


@dataclass
class Texts:
    """Documents, queries, and for each query the grades of documents by number."""

    documents: list[str]
    queries: list[str]
    grades: list[dict[int, float]]


def docstrings(number: int) -> Texts:
    """First paragraphs and the rest of docstrings in the sources of numpy, scikit-learn and torch."""
    found: dict[str, str] = {}
    for package in ("numpy", "sklearn", "torch"):
        (folder,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr]
        for path in sorted(Path(folder).rglob("*.py")):
            if "tests" in path.parts or "_inductor" in path.parts or path.stat().st_size > 500_000:
                continue
            try:
                tree = ast.parse(path.read_text(encoding="utf-8"))
            except SyntaxError:  # written for a newer Python
                continue
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    first, _, rest = (ast.get_docstring(node) or "").partition("\n\n")
                    if len(first.split()) >= 4 and len(rest.split()) >= 30:
                        found.setdefault(" ".join(first.split()), rest)
    # In an order that does not go by package.
    order = np.random.default_rng(0).permutation(len(found))[:number]
    pairs = [list(found.items())[i] for i in order]
    return Texts([rest for _, rest in pairs], [first for first, _ in pairs], [{i: 1.0} for i in range(len(pairs))])


def cranfield(folder: str) -> Texts:
    """The Cranfield collection, whose judgements count queries by their order, from code 1, the best, to 4; -1 is as good as 1."""

    def records(name: str) -> list[str]:
        text = Path(folder, name).read_text(encoding="utf-8")
        return [record.partition("\n.W\n")[2] for record in re.split(r"^\.I \d+", text, flags=re.MULTILINE)[1:]]

    documents, queries = records("cran.all.1400"), records("cran.qry")
    grades: list[dict[int, float]] = [{} for _ in queries]
    for line in Path(folder, "cranqrel").read_text(encoding="utf-8").splitlines():
        if line.strip():
            query, document, code = map(int, line.split()[:3])
            grades[query - 1][document - 1] = 4.0 if code == -1 else 5.0 - code
    return Texts(documents, queries, grades)


def candidates(texts: Texts, depth: int) -> RankingDataset:
    """What BM25 retrieves for each query, the best first, and features of each pair of texts."""
    vectorizer = CountVectorizer(token_pattern=r"(?u)[^\W_]{2,}")
    documents = vectorizer.fit_transform(texts.documents).tocsr()
    asked = vectorizer.transform(texts.queries).tocsr().sign().astype(float)
    frequency, length = np.bincount(documents.indices), np.asarray(documents.sum(1)).ravel()
    idf = np.log1p((len(texts.documents) - frequency + 0.5) / (frequency + 0.5))
    bm25 = documents.astype(float)
    saturation = np.repeat(1.2 * (0.25 + 0.75 * length / length.mean()), np.diff(bm25.indptr))
    bm25.data = idf[bm25.indices] * bm25.data * 2.2 / (bm25.data + saturation)
    scores = np.concatenate([(asked[i : i + 500] @ bm25.T).toarray() for i in range(0, len(texts.queries), 500)])
    items = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    score = np.take_along_axis(scores, items, 1)

    def likeness(**options: Any) -> np.ndarray:
        """Cosines of tf-idf."""
        tfidf = TfidfVectorizer(sublinear_tf=True, **options)
        by_item = tfidf.fit_transform(texts.documents)
        by_query = tfidf.transform(texts.queries)
        return np.stack([(by_item[found] @ by_query[q].T).toarray()[:, 0] for q, found in enumerate(items)])

    there, wanted = documents.sign(), asked.multiply(idf).tocsr()
    share = np.stack([(there[found] @ wanted[q].T).toarray()[:, 0] for q, found in enumerate(items)])
    features = [
        score,
        score / (score[:, :1] + 1e-6),
        share / (np.asarray(wanted.sum(1)) + 1e-6),
        likeness(),
        likeness(ngram_range=(2, 2)),
        likeness(analyzer="char_wb", ngram_range=(4, 4)),  # other forms of the same word
        np.log1p(length[items]),
    ]
    grades = [[found.get(i, 0.0) for i in row] for found, row in zip(texts.grades, items.tolist(), strict=True)]
    return RankingDataset(
        torch.from_numpy(np.stack(features, 2)).float().flatten(0, 1),
        torch.tensor(grades).flatten(),
        torch.arange(len(items) + 1) * items.shape[1],
        texts.queries,
    )


class BM25(nn.Module):
    """The order that the candidates came in."""

    def forward(self, features: Tensor) -> Tensor:
        return features[..., 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cranfield", help="folder with cran.all.1400, cran.qry and cranqrel")
    parser.add_argument("--docstrings", type=int, default=4000, help="how many, without --cranfield")
    parser.add_argument("--candidates", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*|The number of training batches.*")

    torch.set_num_threads(1)  # matrices this small are slower on several
    pl.seed_everything(0, verbose=False)
    texts = cranfield(args.cranfield) if args.cranfield else docstrings(args.docstrings)
    data = candidates(texts, args.candidates)
    order = np.random.default_rng(1).permutation(len(data))
    train, val, test = np.split(order, [int(0.6 * len(order)), int(0.75 * len(order))])
    print(f"{len(texts.documents):,} documents, {len(train):,} queries to train on")

    def loader(queries: np.ndarray, shuffle: bool = False) -> DataLoader:
        return DataLoader(queries.tolist(), batch_size=32, shuffle=shuffle, collate_fn=data.__getitem__)

    with tempfile.TemporaryDirectory() as folder:
        best = ModelCheckpoint(folder, monitor="val/ndcg@10", mode="max")
        trainer = pl.Trainer(
            max_epochs=args.epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[RankingMonitor(METRICS, advice=False, interval=0.95), best],
        )
        scorer = MLPScorer([32, 16])
        scorer.fit_features(torch.cat([data[int(q)]["features"] for q in train]))
        model = RankingModule(scorer, ApproxNDCGLoss(temperature=0.5), lambda p: torch.optim.AdamW(p, lr=3e-3))
        trainer.fit(model, loader(train, shuffle=True), loader(val))
        rows = []
        for name, ranker, path in (
            ("BM25", RankingModule(BM25(), "softmax"), None),
            ("re-ranker", model, best.best_model_path),
        ):
            (found,) = trainer.test(ranker, loader(test), ckpt_path=path, verbose=False)
            rows.append(
                [
                    name,
                    *(f"{found[f'test/{m}']:.4f} ± {(found[f'test/{m}/high'] - found[f'test/{m}']):.4f}" for m in METRICS),
                ]
            )
    print_table(f"Test: {len(test):,} queries, means with 95 % intervals", ["", *METRICS], rows)


if __name__ == "__main__":
    main()
