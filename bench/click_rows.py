"""Click rows as the feed is measured with: a label, 13 floats, 26 categories; 157 bytes a row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 8
ROWS = 250_000
GROUP_ROWS = 65_536
LINE_FILES = 4
LINES = 250_000


def write_parquet(folder: Path, *, files: int = FILES, rows: int = ROWS) -> list[Path]:
    """Write files of click rows; those that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:03d}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.exists():
            partial = path.with_suffix(".partial")
            pq.write_table(_table(number, rows), partial, row_group_size=GROUP_ROWS)
            partial.rename(path)
    return paths


def write_lines(folder: Path, *, files: int = LINE_FILES, lines: int = LINES) -> list[Path]:
    """Write files of tab separated click rows, about 265 bytes a line."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:03d}.tsv" for number in range(files)]
    for number, path in enumerate(paths):
        if not path.exists():
            random = np.random.default_rng(100 + number)
            values = random.integers(0, 1 << 32, (4_096, 29), np.uint64)
            block = b"".join(b"\t".join(b"%08x" % value for value in row) + b"\n" for row in values)
            copies = -(-lines // len(values))
            partial = path.with_suffix(".partial")
            partial.write_bytes(block * copies)
            partial.rename(path)
    return paths


def _table(seed: int, rows: int) -> pa.Table:
    random = np.random.default_rng(seed)
    columns: dict[str, np.ndarray] = {"label": (random.random(rows) < 0.03).astype(np.int8)}
    for number in range(13):
        columns[f"I{number + 1}"] = random.lognormal(1.0, 1.5, rows).astype(np.float32)
    for number in range(26):
        columns[f"C{number + 1}"] = (random.zipf(1.3, rows) % 1_000_000).astype(np.int32)
    return pa.table(columns)
