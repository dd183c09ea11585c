"""Reads rows with pyarrow, pandas and datasets, and compares every message and schema with the JSON they were made of."""

import json
import os
import sys

import datasets
import pandas
import pyarrow.parquet

folder = sys.argv[1]
path = os.path.join(folder, "data", "train-00000-of-00001.parquet")
with open(os.path.join(folder, "expected.jsonl"), encoding="utf-8") as lines:
    expected = [json.loads(line) for line in lines]


def same(found, wanted):
    """Equal as JSON: 1 is not 1.0, and keys keep their order."""
    assert json.dumps(found) == json.dumps(wanted), f"{json.dumps(found)}\n{json.dumps(wanted)}"


def bare(message):
    """A message without the fields that are missing in it; content is told from missing content by its key."""
    kept = {name: message[name] for name in ("role", "tool_call_id", "name") if message[name] is not None}
    kept["content"] = message["content"]
    if message["tool_calls"] is not None:
        kept["tool_calls"] = [
            {"id": call["id"], "type": call["type"],
             "function": {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
    return kept


def check(reader, rows):
    rows = list(rows)
    assert len(rows) == len(expected), len(rows)
    for row, wanted in zip(rows, expected, strict=True):
        same([bare(message) for message in row["messages"]], wanted["messages"])
        same(json.loads(row["tools"]), wanted["tools"])
        # The text itself, byte by byte.
        texts = [call["function"]["arguments"] for message in row["messages"]
                 for call in (message["tool_calls"] if message["tool_calls"] is not None else [])]
        same(texts, wanted["arguments"])
        assert row["tools"] == wanted["tools_text"], row["tools"]
    print(reader, "ok")


check("pyarrow", pyarrow.parquet.read_table(path).to_pylist())
frame = pandas.read_parquet(path)
check("pandas", frame.to_dict("records"))
cache = os.path.join(folder, "hub-cache")
check("datasets", datasets.load_dataset("parquet", data_files={"train": path}, cache_dir=cache)["train"])

file = pyarrow.parquet.ParquetFile(path)
assert {b"mcpmill.schema": b"1"}.items() <= file.metadata.metadata.items(), file.metadata.metadata
for column in range(file.metadata.row_group(0).num_columns):
    chunk = file.metadata.row_group(0).column(column)
    assert chunk.compression == "ZSTD" and chunk.has_offset_index and chunk.has_column_index, chunk
print("layout ok")
