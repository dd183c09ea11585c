"""Embeds the same texts with mcpmill and with ONNX Runtime alone, in turn, and compares the rates.

usage: embed_rate.py BINARY RUNTIME FOLDER TEXTS THREADS [ROUNDS]

BINARY is the example `embed_rate`, RUNTIME the library that it loads, FOLDER holds model.onnx and the tokenizer's files,
TEXTS is what `embed_rate texts` made. Both sides have the same model, tokenizer, batch of 32, 256 tokens at most, padding to the
longest of a batch, threads, mean pooling and unit length. ONNX Runtime is measured twice: texts in the order of the
file, and sorted by length as mcpmill does it. Needs `onnxruntime`, `tokenizers` and `numpy`.
"""

import json
import os
import statistics
import subprocess
import sys
import time

BINARY, RUNTIME, FOLDER, TEXTS, THREADS = sys.argv[1:6]
os.environ["RAYON_NUM_THREADS"] = THREADS

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

BATCH, LONGEST = 32, 256
WAYS = ("ahead", "model", "single")


class Raw:
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(THREADS)
        options.inter_op_num_threads = 1
        model = os.path.join(FOLDER, "model.onnx")
        self.session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = [wanted.name for wanted in self.session.get_inputs()]
        self.tokenizer = Tokenizer.from_file(os.path.join(FOLDER, "tokenizer.json"))
        self.tokenizer.enable_truncation(LONGEST)
        self.tokenizer.enable_padding()

    def batch(self, texts):
        encoded = self.tokenizer.encode_batch(texts)
        mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
        given = {
            "input_ids": np.array([each.ids for each in encoded], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([each.type_ids for each in encoded], dtype=np.int64),
        }
        hidden = self.session.run(None, {name: given[name] for name in self.inputs})[0]
        weight = mask[:, :, None].astype(np.float32)
        mean = (hidden * weight).sum(axis=1) / weight.sum(axis=1)
        return mean / np.linalg.norm(mean, axis=1, keepdims=True)

    def embed(self, texts):
        return np.concatenate([self.batch(texts[at : at + BATCH]) for at in range(0, len(texts), BATCH)])


def timed(work):
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def main():
    rounds = int(sys.argv[6]) if len(sys.argv) > 6 else 5
    with open(TEXTS, encoding="utf-8") as lines:
        texts = [json.loads(line) for line in lines]
    ordered = sorted(texts, key=lambda text: len(text.encode()))
    raw = Raw()
    raw.embed(texts[:BATCH])
    rates = {}

    def note(name, seconds):
        for clock, spent in zip(("wall", "processor"), seconds, strict=True):
            rates.setdefault((name, clock), []).append(len(texts) / spent)

    for number in range(rounds):
        for way in WAYS:
            command = [BINARY, "embed", RUNTIME, FOLDER, TEXTS, THREADS, way]
            told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            assert told["texts"] == len(texts)
            note(f"mcpmill, {way}", (told["seconds"], told["cpu_seconds"]))
        note("ONNX Runtime, order of the file", timed(lambda: raw.embed(texts)))
        note("ONNX Runtime, sorted by length", timed(lambda: raw.embed(ordered)))
        print(f"round {number + 1}:", {" ".join(name): round(all[-1], 1) for name, all in rates.items()}, flush=True)
    cosines = (np.array(told["first"]) * raw.embed(texts[: len(told["first"])])).sum(axis=1)
    assert cosines.min() > 0.9999, cosines
    print("both make the same vectors; least cosine", round(float(cosines.min()), 6))
    medians = {name: statistics.median(all) for name, all in rates.items()}
    for (name, clock), median in medians.items():
        of = [medians[f"mcpmill, {way}", clock] / median for way in WAYS]
        print(f"{clock}: {name}: {median:.1f} texts/s;", ", ".join(f"{way} {ratio:.2f}" for way, ratio in zip(WAYS, of)))


main()
