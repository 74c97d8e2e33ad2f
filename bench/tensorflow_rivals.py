"""The rival's side of `bench/feed_tensorflow.py`: the tf.data service, in its own environment.

    python tensorflow_rivals.py FOLDER      # rows a second, from the first batch on

The rows of FOLDER's first Parquet files become TFRecord files below it, once.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

SECONDS = 4.0
BATCH_ROWS = 8192
ROWS = 200_000
WORKERS = 1


def main(folder: Path) -> None:
    """Print the rate of the service with one worker in this process."""
    import tensorflow as tf  # noqa: PLC0415  after its settings

    paths = [str(path) for path in converted(folder, tf)]
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    workers = [
        service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
        for _ in range(WORKERS)
    ]

    def parse(record: Any) -> tuple[Any, ...]:
        values = tf.io.decode_raw(record, tf.float32)
        return values[:, 0], values[:, 1:14], tf.bitcast(values[:, 14:], tf.int32)

    rows = tf.data.Dataset.from_tensor_slices(paths)
    rows = rows.interleave(tf.data.TFRecordDataset, cycle_length=2).batch(BATCH_ROWS).map(parse)
    mode = service.ShardingPolicy.DYNAMIC
    rows = rows.apply(service.distribute(processing_mode=mode, service=dispatcher.target))
    count, began, now = 0, 0.0, 0.0
    for batch in rows.prefetch(4):
        now = time.perf_counter()
        if not began:
            began = now
            continue
        count += int(batch[0].shape[0])
        if now - began > SECONDS:
            break
    print(count / (now - began), flush=True)
    del workers
    # The servers' threads would be waited for.
    os._exit(0)


def converted(folder: Path, tf: Any) -> list[Path]:
    """Return the same rows as TFRecord files: label, floats, integers, 160 bytes."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    place = folder / "tfrecord"
    made = [place / f"part-{number}.tfrecord" for number in range(2)]
    if (place / "complete").exists():
        return made
    place.mkdir(exist_ok=True)
    for path, source in zip(made, sorted(folder.glob("*.parquet")), strict=False):
        table = pq.read_table(source).slice(0, ROWS)
        columns = [column.to_numpy() for column in table.columns]
        body = np.concatenate(
            [
                columns[0].astype(np.float32)[:, None].view(np.uint8),
                np.stack(columns[1:14], axis=1).view(np.uint8),
                np.stack(columns[14:], axis=1).view(np.uint8),
            ],
            axis=1,
        )
        with tf.io.TFRecordWriter(str(path)) as out:
            for row in body:
                out.write(row.tobytes())
    (place / "complete").touch()
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
