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
    """Rows, and the seconds of table and file on the wall and of the processor, rows read outside the clock."""
    spent = {"table": [0.0, 0.0], "file": [0.0, 0.0]}
    count = 0
    now = lambda: (time.perf_counter(), time.process_time())

    def add(what, begun):
        spent[what] = [total + end - start for total, end, start in zip(spent[what], now(), begun, strict=True)]

    begun = now()
    writer = pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=3, use_dictionary=True, write_statistics=True,
        write_page_index=True, data_page_size=1 << 20, version="1.0",
    )
    add("file", begun)
    with open(rows, encoding="utf-8") as lines:
        while group := [json.loads(line) for line in itertools.islice(lines, GROUP)]:
            begun = now()
            table = pa.Table.from_pylist(group, schema=schema)
            add("table", begun)
            begun = now()
            writer.write_table(table, row_group_size=GROUP)
            add("file", begun)
            count += len(group)
    begun = now()
    writer.close()
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
    add("file", begun)
    return count, spent["table"], spent["file"]


def main():
    binary, rows, folder = sys.argv[1:4]
    rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    ours, theirs = os.path.join(folder, "mcpmill.parquet"), os.path.join(folder, "pyarrow.parquet")
    names = ("mcpmill, records to file", "pyarrow, table to file", "pyarrow, objects to file")
    rates = {(name, clock): [] for name in names for clock in ("wall", "processor")}
    for number in range(rounds):
        told = json.loads(subprocess.run([binary, "write", rows, ours], check=True, capture_output=True).stdout)
        count, table, file = write(rows, pq.read_schema(ours), theirs)
        assert count == told["rows"]
        for at, clock in enumerate(("wall", "processor")):
            rates[names[0], clock].append(count / told[("seconds", "cpu_seconds")[at]])
            rates[names[1], clock].append(count / file[at])
            rates[names[2], clock].append(count / (table[at] + file[at]))
        print(f"round {number + 1}:", {" ".join(name): round(all[-1]) for name, all in rates.items()}, flush=True)
    for group in range(pq.ParquetFile(ours).num_row_groups):
        assert pq.ParquetFile(ours).read_row_group(group) == pq.ParquetFile(theirs).read_row_group(group), group
    print("the files hold the same rows;", "bytes:", os.path.getsize(ours), "and", os.path.getsize(theirs))
    medians = {name: statistics.median(all) for name, all in rates.items()}
    for (name, clock), median in medians.items():
        ratio = medians[names[0], clock] / median
        print(f"{clock}: {name}: {median:.0f} rows/s, mcpmill is {ratio:.2f} times as fast")


main()
