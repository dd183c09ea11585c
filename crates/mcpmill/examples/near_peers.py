"""Clusters near duplicates with datasketch, beside the example `near`.

    python near_peers.py SET.jsonl CLUSTERS.txt [--threshold 0.7] [--perm 128] [--shingle char5|word1|word2] [--workers 2]

Signatures are made by as many processes as there are cores; the index is one. Pairs from the index are believed when
the Jaccard index that their signatures estimate reaches the threshold, and joined by union-find. The last line
printed is JSON, as the example prints it (the peak is the sum of the peaks of all processes).

Needs datasketch==2.0.0 and numpy==2.4.6.
"""

import argparse
import json
import re
import resource
import time
from multiprocessing import Pool

import numpy
from datasketch import MinHash, MinHashLSH


def shingles(text, kind):
    text = text.lower()
    if kind.startswith("char"):
        text, n = re.sub(r"\s+", " ", text), int(kind[4:])
        return {text[i:i + n].encode() for i in range(max(1, len(text) - n + 1))}
    tokens, n = re.findall(r"\w+", text), int(kind[4:])
    return {" ".join(tokens[i:i + n]).encode() for i in range(max(1, len(tokens) - n + 1))}


def signatures(job):
    texts, perm, kind = job
    made = MinHash.bulk([shingles(t, kind) for t in texts], num_perm=perm, seed=1)
    return numpy.array([m.hashvalues for m in made])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("set")
    a.add_argument("clusters")
    a.add_argument("--threshold", type=float, default=0.7)
    a.add_argument("--perm", type=int, default=128)
    a.add_argument("--shingle", default="char5")
    a.add_argument("--workers", type=int, default=2)
    args = a.parse_args()
    texts = [json.loads(line)["text"] for line in open(args.set, encoding="utf-8")]
    started = time.perf_counter()
    jobs = [(texts[i:i + 2000], args.perm, args.shingle) for i in range(0, len(texts), 2000)]
    with Pool(args.workers) as pool:
        rows = [row for part in pool.imap(signatures, jobs) for row in part]
    lsh = MinHashLSH(threshold=args.threshold, num_perm=args.perm)
    root = list(range(len(texts)))

    def find(i):
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    for i, row in enumerate(rows):
        mine = MinHash(num_perm=args.perm, seed=1, hashvalues=row, scheme="affine32")
        for j in lsh.query(mine):
            if find(i) != find(j) and numpy.count_nonzero(row == rows[j]) >= args.threshold * args.perm:
                x, y = find(i), find(j)
                root[max(x, y)] = min(x, y)
        lsh.insert(i, mine, check_duplication=False)
    found = [find(i) for i in range(len(texts))]
    seconds = time.perf_counter() - started
    with open(args.clusters, "w") as out:
        out.writelines(f"{f}\n" for f in found)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peak = (own + args.workers * child) // 1024
    print(json.dumps({"texts": len(texts), "clusters": len(set(found)), "seconds": round(seconds, 2), "peak_mib": peak}))


if __name__ == "__main__":
    main()
