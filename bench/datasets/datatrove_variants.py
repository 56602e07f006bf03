"""datatrove's work on the rows of ``bench/corpus.py``: deduplication and decontamination.

datatrove is imported when a variant starts: only the peers' environment has it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.datasets.data_variants import Variant

ROWS_NAME, ITEMS_NAME = "rows.jsonl", "items.jsonl"


def datatrove() -> Variant:
    """Run datatrove's four stages with its own settings of 14 buckets of 8 hashes: signatures, buckets, clusters, filter."""
    import xxhash
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import (
        MinhashDedupBuckets,
        MinhashDedupCluster,
        MinhashDedupFilter,
        MinhashDedupSignature,
    )
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.logging import logger

    class EncodedSignatures(MinhashDedupSignature):
        """Encodes texts before hashing, because version 4 of xxhash only takes bytes."""

        def __init__(self, folder: str, language: Any) -> None:
            super().__init__(folder, language=language)
            self._hash_func = lambda text: xxhash.xxh64_intdigest(text.encode())

    def read(folder: Path) -> int:
        logger.remove()
        work = folder / "datatrove"

        def rows() -> Any:
            return JsonlReader(str(folder), adapter=_document, glob_pattern=ROWS_NAME, recursive=False)

        def name(stage: str) -> str:
            return str(work / stage)

        writer = JsonlWriter(name("kept"), compression=None)
        stages = (
            ([rows(), EncodedSignatures(name("signatures"), language=_words_at_spaces())], 1),
            ([MinhashDedupBuckets(name("signatures"), name("buckets"))], 14),
            ([MinhashDedupCluster(name("buckets"), name("removed"))], 1),
            ([rows(), MinhashDedupFilter(name("removed")), writer], 1),
        )
        for number, (steps, tasks) in enumerate(stages):
            LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=name(f"logs-{number}")).run()
        return sum(path.read_bytes().count(b"\n") for path in (work / "kept").iterdir())

    return read


def n_grams() -> Variant:
    """Run datatrove's filter of 12-grams against the items, with an index that is computed here."""
    import numpy as np
    import xxhash
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.decont import NGramsDecontFilter
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.writers import JsonlWriter
    from datatrove.utils.logging import logger
    from datatrove.utils.text import ngrams, simplify_text

    def hashed(text: str) -> int:
        return int(xxhash.xxh64_intdigest(text.encode()))

    def write_index(items: Path, folder: Path) -> None:
        # datatrove's indexer needs lighteval, which loads tasks from a hub. Unlike it, this index also has the n-grams that
        # lie within a question.
        config = NGramsDecontConfig()
        folder.mkdir(parents=True)
        hashes: set[int] = set()
        for line in items.read_bytes().splitlines():
            item = json.loads(line)
            words = simplify_text(f"{item['prompt']} {item['response']}", config.norm_config).split()
            hashes.update(hashed(" ".join(gram)) for gram in ngrams(words, config.n_grams))
        np.array(list(hashes), np.uint64).tofile(folder / "items.index.hashes")

    def read(folder: Path) -> int:
        logger.remove()
        work = folder / "n-grams"
        write_index(folder / ITEMS_NAME, work / "index")
        rows = JsonlReader(str(folder), adapter=_document, glob_pattern=ROWS_NAME, recursive=False)
        clean = NGramsDecontFilter(str(work / "index"), language=_words_at_spaces())
        clean.hash_func = hashed
        writer = JsonlWriter(str(work / "kept"), compression=None)
        LocalPipelineExecutor([rows, clean, writer], tasks=1, workers=1, logging_dir=str(work / "logs")).run()
        return sum(path.read_bytes().count(b"\n") for path in (work / "kept").iterdir())

    return read


def _words_at_spaces() -> Any:
    from datatrove.utils.word_tokenizers import WordTokenizer

    class SplitAtSpaces(WordTokenizer):
        """Splits words at spaces; spaCy, the default for English, is many times slower."""

        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            raise NotImplementedError

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            raise NotImplementedError

    return SplitAtSpaces()


def _document(_: Any, row: dict[str, Any], path: str, line: int | str) -> dict[str, Any]:
    return {"text": f"{row['prompt']} {row['response']}", "id": f"{path}/{line}"}
