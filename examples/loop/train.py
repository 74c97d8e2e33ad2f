"""The smallest trainer: one loop over the rows that are leased to this worker.

After `make demo`, which leaves rows there:

    primusctl run --workers 4 --data 'examples/flights/data/train/*.parquet' \
        -- python examples/loop/train.py
"""

import numpy as np

import primus

slope, rows = 0.0, 0
for step, batch in enumerate(primus.dataset()):  # a dict: column name to numpy array
    left = np.nan_to_num(batch["dep_delay"])
    error = np.nan_to_num(batch["arr_delay"]) - slope * left
    slope += 1e-5 * float((error * left).mean())
    rows += len(left)
    primus.report(step=step, loss=float(abs(error).mean()))
print(f"{rows:,} rows: a minute late at departure is {slope:.2f} minutes late at arrival")
