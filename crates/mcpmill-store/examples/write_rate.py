"""Writes the same rows as Parquet with mcpmill and with pyarrow, in turn, and compares the rates.

usage: write_rate.py BINARY ROWS FOLDER [ROUNDS]      BINARY is the example `write_rate`, ROWS what `write_rate rows` made

pyarrow is measured twice: from Python objects (`Table.from_pylist`, then the file) and from a table that is in memory
already (the file alone). mcpmill is measured from its records, which it has to turn into columns. Settings are the same:
row groups, zstd level 3, dictionaries, statistics, page index, pages of 1 MiB. Both sync the file.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 10_000


def write(rows, schema, path):
    """Seconds of the table and of the file, rows read outside the clock."""
    table_s = file_s = 0.0
    count = 0
    begun = time.perf_counter()
    writer = pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=3, use_dictionary=True, write_statistics=True,
        write_page_index=True, data_page_size=1 << 20, version="1.0",
    )
    file_s += time.perf_counter() - begun
    with open(rows, encoding="utf-8") as lines:
        while group := [json.loads(line) for line in itertools.islice(lines, GROUP)]:
            begun = time.perf_counter()
            table = pa.Table.from_pylist(group, schema=schema)
            made = time.perf_counter()
            writer.write_table(table, row_group_size=GROUP)
            file_s += time.perf_counter() - made
            table_s += made - begun
            count += len(group)
    begun = time.perf_counter()
    writer.close()
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    file_s += time.perf_counter() - begun
    return count, table_s, file_s


def main():
    binary, rows, folder = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    ours, theirs = os.path.join(folder, "mcpmill.parquet"), os.path.join(folder, "pyarrow.parquet")
    rates = {"mcpmill, records to file": [], "pyarrow, table to file": [], "pyarrow, objects to file": []}
    for number in range(rounds):
        told = json.loads(subprocess.run([binary, "write", rows, ours], check=True, capture_output=True).stdout)
        rates["mcpmill, records to file"].append(told["rows"] / told["seconds"])
        count, table_s, file_s = write(rows, pq.read_schema(ours), theirs)
        assert count == told["rows"]
        rates["pyarrow, table to file"].append(count / file_s)
        rates["pyarrow, objects to file"].append(count / (table_s + file_s))
        print(f"round {number + 1}:", {name: round(all[-1]) for name, all in rates.items()}, flush=True)
    for group in range(pq.ParquetFile(ours).num_row_groups):
        assert pq.ParquetFile(ours).read_row_group(group) == pq.ParquetFile(theirs).read_row_group(group), group
    print("the files hold the same rows;", "bytes:", os.path.getsize(ours), "and", os.path.getsize(theirs))
    medians = {name: statistics.median(all) for name, all in rates.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.0f} rows/s, mcpmill is {medians['mcpmill, records to file'] / median:.2f} times as fast")


main()
