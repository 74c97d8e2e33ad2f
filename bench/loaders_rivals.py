"""The rivals' side of `bench/feed_torch.py`: each in its own environment, prints rows a second.

    python loaders_rivals.py torch|hf|webdataset|mosaic|mosaic-index|ray rows|tokens FOLDER WORKERS

Batches of 1,024 click rows as a label and two matrices, or of 32 blocks of 2,048 tokens, from the
first batch on, for a few seconds at the most. With Ray all files are read `REPEATS` times over, to
their end: by the first batch it has read ahead what its object store takes, and that is to be a
small part of it. What a rival must have converted lies below FOLDER and is made once.
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 2.0
REPEATS = 8
OBJECT_STORE_BYTES = 1 << 30
BATCH = {"rows": 1024, "tokens": 32}
CONVERTED = {"rows": 50_000, "tokens": 4_000}
FLOATS = [f"I{number + 1}" for number in range(13)]
INTEGERS = [f"C{number + 1}" for number in range(26)]
Made = Iterator[tuple[Any, ...]]


def main(name: str, kind: str, folder: Path, workers: int) -> None:
    """Print the rate of one rival."""
    print(RIVALS[name](kind, folder, workers), flush=True)
    # Loaders keep workers and threads that would be waited for.
    os._exit(0)


def rate(batches: Any, count: Callable[[Any], int]) -> float:
    """Return rows a second from the first batch on."""
    rows, began, now = 0, 0.0, 0.0
    for batch in batches:
        now = time.perf_counter()
        if not began:
            began = now
            continue
        rows += count(batch)
        if now - began > SECONDS:
            break
    return rows / (now - began)


def groups(kind: str, paths: list[Path]) -> Made:
    """Yield whole row groups as arrays, read by one thread."""
    import pyarrow as pa  # noqa: PLC0415  each environment has its own packages
    import pyarrow.parquet as pq  # noqa: PLC0415

    pa.set_cpu_count(1)
    for path in paths:
        file = pq.ParquetFile(path, pre_buffer=False)
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, use_threads=False).combine_chunks()
            batch = table.to_batches()[0]
            if kind == "tokens":
                yield (batch.column(0).flatten().to_numpy().reshape(batch.num_rows, -1),)
                continue
            yield (
                batch.column(0).to_numpy(),
                batch.select(FLOATS).to_tensor(row_major=True).to_numpy(),
                batch.select(INTEGERS).to_tensor(row_major=True).to_numpy(),
            )


def files(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder."""
    return sorted(folder.glob("*.parquet"))


def samples(kind: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one dict a row, for what wants converted data."""
    left = CONVERTED[kind]
    for arrays in groups(kind, files(folder)):
        for row in zip(*arrays, strict=True):
            if not left:
                return
            left -= 1
            yield dict(zip(COLUMNS[kind], row, strict=True))


COLUMNS = {"rows": ("label", "floats", "integers"), "tokens": ("tokens",)}


def torch_loader(kind: str, folder: Path, workers: int) -> float:
    """torch's DataLoader over ready batches of tensors."""
    import torch  # noqa: PLC0415
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: PLC0415

    torch.set_num_threads(1)

    class Ready(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[Any, ...]]:
            info, mine = get_worker_info(), files(folder) * 4
            if info is not None:
                mine = mine[info.id :: info.num_workers]
            for arrays in groups(kind, mine):
                whole = [torch.from_numpy(array) for array in arrays]
                for at in range(0, len(whole[0]), BATCH[kind]):
                    yield tuple(one[at : at + BATCH[kind]] for one in whole)

    loader = DataLoader(Ready(), batch_size=None, num_workers=workers)
    return rate(loader, lambda batch: len(batch[0]))


def huggingface(kind: str, folder: Path, workers: int) -> float:
    """HuggingFace's streaming, batches as torch tensors."""
    del workers
    os.environ["HF_HUB_OFFLINE"] = "1"
    datasets: Any = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    paths = [str(path) for path in files(folder)]
    rows = datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True)
    name = COLUMNS[kind][0]
    return rate(rows.with_format("torch").iter(BATCH[kind]), lambda batch: len(batch[name]))


def webdataset(kind: str, folder: Path, workers: int) -> float:
    """WebDataset's loader over tar files."""
    web: Any = importlib.import_module("webdataset")
    place = folder / "webdataset"
    if not (place / "complete").exists():
        place.mkdir(exist_ok=True)
        with web.ShardWriter(f"{place}/%03d.tar", maxcount=CONVERTED[kind] // 4, verbose=0) as out:
            for number, sample in enumerate(samples(kind, folder)):
                arrays = {f"{name}.npy": np.asarray(value) for name, value in sample.items()}
                out.write({"__key__": f"{number:08d}", **arrays})
        (place / "complete").touch()
    shards = sorted(str(path) for path in place.glob("*.tar"))
    names = [f"{name}.npy" for name in COLUMNS[kind]]
    rows = web.WebDataset(shards, shardshuffle=False).decode().to_tuple(*names)
    loader = web.WebLoader(rows.batched(BATCH[kind]), batch_size=None, num_workers=workers)
    return rate(loader, lambda batch: len(batch[0]))


def _mosaic(kind: str, folder: Path) -> Any:
    streaming: Any = importlib.import_module("streaming")
    place = folder / "mosaic"
    if not (place / "complete").exists():
        types = {
            "rows": {
                "label": "int8",
                "floats": "ndarray:float32:13",
                "integers": "ndarray:int32:26",
            },
            "tokens": {"tokens": "ndarray:int32:2048"},
        }
        with streaming.MDSWriter(out=str(place), columns=types[kind], exist_ok=True) as out:
            for sample in samples(kind, folder):
                out.write(sample)
        (place / "complete").touch()
    streaming.base.util.clean_stale_shared_memory()
    return streaming.StreamingDataset(local=str(place), shuffle=False, batch_size=BATCH[kind])


def mosaic(kind: str, folder: Path, workers: int) -> float:
    """MosaicML's loader."""
    rows = _mosaic(kind, folder)
    streaming: Any = importlib.import_module("streaming")
    loader = streaming.StreamingDataLoader(rows, batch_size=BATCH[kind], num_workers=workers)
    name = COLUMNS[kind][0]
    return rate(loader, lambda batch: len(batch[name]))


def mosaic_index(kind: str, folder: Path, workers: int) -> float:
    """MosaicML's dataset, sample by sample."""
    del workers
    rows = _mosaic(kind, folder)
    return rate((rows[number % len(rows)] for number in range(1 << 30)), lambda _: 1)


def ray_split(kind: str, folder: Path, workers: int) -> float:
    """Ray Data's `streaming_split`: all consumers together, from the first batch of any of them.

    Over twice as much is read as its object store takes: else it would be measured on how fast
    blocks are taken that lie ready.
    """
    os.environ.update(RAY_DATA_DISABLE_PROGRESS_BARS="1", RAY_USAGE_STATS_ENABLED="0")
    ray: Any = importlib.import_module("ray")
    importlib.import_module("ray.data")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    name, size = COLUMNS[kind][0], BATCH[kind]

    def consume(part: Any) -> tuple[int, float, float]:
        rows, first = 0, 0.0
        for batch in part.iter_batches(batch_size=size, batch_format="numpy"):
            rows += len(batch[name])
            first = first or time.time()
        return rows, first, time.time()

    task = ray.remote(num_cpus=0)(consume)
    paths = [str(path) for path in files(folder)] * REPEATS
    parts = ray.data.read_parquet(paths).streaming_split(workers, equal=False)
    found = [one for one in ray.get([task.remote(part) for part in parts]) if one[0]]
    seconds = max(end for _, _, end in found) - min(first for _, first, _ in found)
    return sum(rows for rows, _, _ in found) / seconds


RIVALS = {
    "torch": torch_loader,
    "hf": huggingface,
    "webdataset": webdataset,
    "mosaic": mosaic,
    "mosaic-index": mosaic_index,
    "ray": ray_split,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
