"""Reads an export with every reader its users have, and checks that they see the same rows."""

import glob
import json
import sys

import datasets
import duckdb
import polars
import pyarrow.parquet

export = sys.argv[1]
files = sorted(glob.glob(f"{export}/data/*.parquet"))
assert files, "no files"


def check(row):
    """A row as a trainer uses it: calls are of offered tools, their arguments are JSON objects, and what is to be
    learned is said turn by turn."""
    tools = json.loads(row["tools"])
    calls = [call for message in row["messages"] for call in message["tool_calls"] or []]
    assert bool(calls) == (row["kind"] != "no-tool"), row
    for call in calls:
        assert call["type"] == "function" and call["id"], call
        assert isinstance(json.loads(call["function"]["arguments"]), dict), call
        assert call["function"]["name"] in [tool["function"]["name"] for tool in tools], call
    assert row["messages"][0]["role"] == "user" and row["messages"][0]["content"], row["messages"]
    for message, learned in zip(row["messages"], row["loss"], strict=True):
        assert not learned or message["role"] == "assistant", row["loss"]
        assert message["role"] != "assistant" or message["content"] or message["tool_calls"], message
    assert any(row["loss"]), row
    assert row["licence"] and row["lineage"] and row["verdicts"], row


tables = [pyarrow.parquet.read_table(path) for path in files]
rows = [row for table in tables for row in table.to_pylist()]
for row in rows:
    check(row)
print("pyarrow ok")

splits = datasets.load_dataset(export, cache_dir=f"{sys.argv[1]}/../../hub-cache")
assert sum(len(split) for split in splits.values()) == len(rows)
for name, split in splits.items():
    for row in split:
        check(row)
        assert row["split"] == name, (row["split"], name)
print("datasets ok")

frame = polars.concat([polars.read_parquet(path) for path in files])
assert frame.height == len(rows) and set(frame["id"]) == {row["id"] for row in rows}
print("polars ok")

query = "select count(*), count(distinct id), count(messages[1].content) from read_parquet(?)"
assert duckdb.execute(query, [files]).fetchone() == (len(rows),) * 3
print("duckdb ok")
