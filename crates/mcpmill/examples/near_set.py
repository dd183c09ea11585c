"""Makes the labelled set of near-duplicate instructions, and scores a clustering of it.

    python3 near_set.py make OUT.jsonl [--size 100000] [--held] [--seed 1] [--real FILE]
    python3 near_set.py score SET.jsonl CLUSTERS.txt

A row is {"text", "cluster", "edit", "of"}: `edit` is base, case, reorder, swap, paraphrase or like:KIND, `of` the row it
was made from. Edits of one base share its cluster; a look-alike (one value changed) has a cluster of its own.

case        another case of the letters, other punctuation, white space or quotation marks
reorder     words change places (never inside a value), or sentences do
swap        one or two words that are no values are replaced, dropped or added
paraphrase  the sentence is said another way (written by hand for each task), in another frame, some words replaced
like:KIND   one value of that kind is replaced by another of its kind; nothing else changes
like:task   another task with the very same values (and the same opening)

`--held` takes other words, frames, openings and ways of saying than the set for development. `--real FILE` takes half of
the bases from a file with one instruction a line (their paraphrase is frame and words only). Only the standard library.
"""

import argparse
import json
import random
import re
from collections import Counter, defaultdict

import near_words as words

SLOT = re.compile(r"\{(\w+)\}")
FOUND = re.compile(r"(`[^`]+`|\"[^\"]+\"|(?<!\w)'[^']+'(?!\w)|https?://\S+|(?:/[\w.-]+)+|\S+@\S+|\b\w+_\w+\b|\b\w+\.\w{2,4}\b|-?\b\d[\d.,-]*\b)")
KINDS = {
    "path": "path", "path2": "path", "dir": "path", "n": "number", "m": "number", "date": "date", "email": "e-mail",
    "url": "URL", "q": "quoted", "q2": "quoted", "ident": "identifier", "name": "name", "city": "name", "city2": "name",
}


class Maker:
    """Draws bases and edits; everything from one seed."""

    def __init__(self, seed, held):
        self.r = random.Random(seed)
        self.held = held
        self.synonyms = words.SYNONYMS_HELD if held else words.SYNONYMS
        self.openings = words.OPENINGS_HELD if held else words.OPENINGS
        self.frames = words.FRAMES_HELD if held else words.FRAMES
        self.seen = set()
        self.topics = set()

    def value(self, slot):
        """A value for a slot, as written in a text."""
        r = self.r
        kind = KINDS[slot]
        if kind == "number":
            return str(r.choice([r.randint(2, 20), r.randint(2, 20) * 5, r.randint(100, 5000), -r.randint(1, 30), r.randint(1, 99) / 10]))
        if kind == "date":
            y, m, d = r.randint(2019, 2026), r.randint(1, 12), r.randint(1, 28)
            return r.choice([f"{y}-{m:02}-{d:02}", f"{d} {words.MONTHS[m - 1]} {y}", f"{words.MONTHS[m - 1]} {d}, {y}"])
        if kind == "e-mail":
            return f"{r.choice(words.FIRST).lower()}.{r.choice(words.LAST).lower()}@{r.choice(words.HOSTS)}"
        if kind == "URL":
            return f"https://{r.choice(words.HOSTS)}/{r.choice(words.STEMS)}/{r.choice(words.STEMS)}"
        if kind == "identifier":
            return r.choice([f"{r.choice(words.STEMS)}_{r.choice(words.STEMS)}", f"{r.choice(words.STEMS)}{r.choice(words.STEMS).title()}"])
        if kind == "quoted":
            return f"{r.choice(words.ADJECTIVES)} {r.choice(words.STEMS)}" if r.random() < 0.5 else r.choice(words.STEMS)
        if slot == "name":
            return f"{r.choice(words.FIRST)} {r.choice(words.LAST)}"
        if kind == "name":
            return r.choice(words.CITIES)
        root = r.choice(words.DIRS)
        return root if slot == "dir" else f"{root}/{r.choice(words.STEMS)}.{r.choice(words.ENDINGS)}"

    def fill(self, form, values):
        return SLOT.sub(lambda m: values[m[1]], form)

    def base(self):
        """A new instruction: text, and what its edits need to know."""
        if self.r.random() < 0.12:
            return self.topic()
        while True:
            task = self.r.choices(words.TASKS, [1 if words.language(t) == "en" else 0.5 for t in words.TASKS])[0]
            slots = dict.fromkeys(SLOT.findall(task[0]))
            values = {}
            for s in slots:
                values[s] = self.value(s)
            distinct = len(set(values.values())) == len(values)
            key = (task[0], tuple(values.values()))
            if distinct and key not in self.seen:
                self.seen.add(key)
                break
        opening = ""
        if words.language(task) == "en" and self.r.random() < 0.6:
            opening = self.r.choice(words.OPENINGS_BASE).format(self.r.choice(words.REASONS)) + " "
        return {"task": task, "values": values, "opening": opening, "text": opening + self.fill(task[0], values)}

    def topic(self):
        """A question without values; any two share at most two of five parts."""
        while True:
            parts = tuple(self.r.choice(p) for p in words.PARTS)
            threes = {(a, b, c, parts[a], parts[b], parts[c]) for a in range(5) for b in range(a) for c in range(b)}
            if not threes & self.topics:
                self.topics |= threes
                break
        forms = words.TOPICS
        task = tuple(SLOT.sub(lambda m: parts["abcde".index(m[1])], f) for f in forms)
        return {"task": task, "values": {}, "opening": "", "text": task[0]}

    def real(self, text):
        values, form = {}, []
        for i, piece in enumerate(FOUND.split(text.replace("{", "(").replace("}", ")"))):
            if i % 2:
                values[f"v{i}"] = piece
                form.append("{v%d}" % i)
            else:
                form.append(piece)
        form = "".join(form)
        return {"task": (form, form, form), "values": values, "opening": "", "text": text, "real": True}

    def case(self, b):
        t, r = b["text"], self.r
        for _ in range(r.randint(1, 2)):
            how = r.randrange(7)
            if how == 0:
                t = t.upper()
            elif how == 1:
                t = t.lower()
            elif how == 2:
                t = t.replace(", ", " ").rstrip(".?!。？")
            elif how == 3:
                t = t.replace(" ", "  ", 2) + r.choice(["", " ", "\n"])
            elif how == 4:
                t = re.sub(r"[.?!]$", "", t) + r.choice(["!", "...", " ?", "."])
            elif how == 5:
                t = re.sub(r"(?<!\w)'([^']+)'(?!\w)", r'"\1"', t)
            else:
                t = t.replace(". ", ".\n").replace("? ", "?\n")
        return t if t != b["text"] else b["text"] + " "

    def pieces(self, b):
        """The words of a base, each value one piece."""
        whole = b["opening"] + b["task"][0]
        return whole.split(" ")

    def reorder(self, b):
        r, p = self.r, self.pieces(b)
        sentences = re.split(r"(?<=[.?!]) ", b["opening"] + b["task"][0])
        if len(sentences) > 1 and r.random() < 0.5:
            r.shuffle(sentences)
            return self.fill(" ".join(sentences), b["values"])
        plain = [i for i, w in enumerate(p) if "{" not in w]
        for _ in range(r.randint(1, 2)):
            if len(plain) > 1:
                i, j = r.sample(plain, 2)
                p[i], p[j] = p[j], p[i]
        return self.fill(" ".join(p), b["values"])

    def replace(self, p, times):
        r = self.r
        places = [i for i, w in enumerate(p) if w.lower().strip(".,?!") in self.synonyms]
        r.shuffle(places)
        for i in places[:times]:
            bare = p[i].strip(".,?!")
            new = r.choice(self.synonyms[bare.lower()])
            p[i] = p[i].replace(bare, new.capitalize() if bare[0].isupper() else new)
        return len(places[:times])

    def swap(self, b):
        r, p = self.r, self.pieces(b)
        times = r.randint(1, 2)
        done = self.replace(p, times)
        for _ in range(times - done):
            plain = [i for i, w in enumerate(p) if "{" not in w and i > 0]
            if plain and r.random() < 0.4 and len(p) > 8:
                p.pop(r.choice(plain))
            else:
                p.insert(r.randint(1, len(p)), r.choice(words.FILLERS))
        return self.fill(" ".join(p), b["values"])

    def paraphrase(self, b):
        r = self.r
        form = b["task"][min(2 if self.held else 1, len(b["task"]) - 1)]
        p = form.split(" ")
        if words.language(b["task"]) != "en":
            return self.fill(form, b["values"])
        self.replace(p, r.randint(0, 2))
        text = " ".join(p)
        if r.random() < 0.5 or b.get("real"):
            frame = r.choice(self.frames)
            if not frame.startswith("{}") and text[1:2].islower():
                text = text[0].lower() + text[1:]
            text = frame.format(text)
        opening = b["opening"]
        if opening and r.random() < 0.7:
            opening = r.choice(["", r.choice(self.openings) + " "])
        return self.fill(opening + text, b["values"])

    def like(self, b):
        """One value changed; None where there is no value."""
        r, values = self.r, dict(b["values"])
        if not values:
            return None
        slot = r.choice(list(values))
        old = values[slot]
        if b.get("real"):
            kind = "real"
            digits = [i for i, c in enumerate(old) if c.isdigit()]
            if digits:
                i = r.choice(digits)
                values[slot] = old[:i] + str((int(old[i]) + r.randint(1, 8)) % 10) + old[i + 1:]
            else:
                runs = re.findall(r"[A-Za-z]{2,}", old)
                if not runs:
                    return None
                values[slot] = old.replace(r.choice(runs), r.choice(words.STEMS), 1)
        else:
            kind = KINDS[slot]
            values[slot] = self.value(slot)
            if kind == "path" and r.random() < 0.5 and slot != "dir":
                values[slot] = old.rsplit(".", 1)[0] + "." + r.choice(words.ENDINGS)
        if values[slot] in b["values"].values():
            return None
        key = (b["task"][0], tuple(values.values()))
        if key in self.seen:
            return None
        self.seen.add(key)
        return {**b, "values": values, "text": self.fill(b["opening"] + b["task"][0], values)}, kind


    def other(self, b):
        """Another task with the same values, or None."""
        same = [t for t in words.TASKS if t != b["task"] and set(SLOT.findall(t[0])) == set(b["values"])]
        if not same or not b["values"] or b.get("real"):
            return None
        task = self.r.choice(same)
        values = {s: b["values"][s] for s in dict.fromkeys(SLOT.findall(task[0]))}
        key = (task[0], tuple(values.values()))
        if key in self.seen or words.language(task) != words.language(b["task"]):
            return None
        self.seen.add(key)
        return {**b, "task": task, "values": values, "text": self.fill(b["opening"] + task[0], values)}, "task"


def make(args):
    m = Maker(args.seed, args.held)
    rows, cluster = [], 0
    reals = []
    if args.real:
        reals = sorted({line.strip() for line in open(args.real, encoding="utf-8") if line.strip()})
        m.r.shuffle(reals)

    def put(text, c, edit, of):
        rows.append({"text": text, "cluster": c, "edit": edit, "of": of})
        return len(rows) - 1

    while len(rows) < args.size:
        b = m.real(reals.pop()) if reals and m.r.random() < 0.5 else m.base()
        first, mine = put(b["text"], cluster, "base", None), cluster
        cluster += 1
        for edit in m.r.sample(["case", "reorder", "swap", "paraphrase"], m.r.choice([0, 1, 2, 2, 3, 4])):
            put(getattr(m, edit)(b), mine, edit, first)
        for _ in range(m.r.choice([0, 1, 1, 2])):
            made = m.other(b) if m.r.random() < 0.2 else m.like(b)
            if made:
                put(made[0]["text"], cluster, "like:" + made[1], first)
                if m.r.random() < 0.3:
                    put(m.case(made[0]), cluster, "case", len(rows) - 1)
                cluster += 1
    rows = rows[: args.size]
    order = list(range(len(rows)))
    m.r.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    with open(args.out, "w", encoding="utf-8") as out:
        for old in order:
            row = rows[old]
            row["of"] = place.get(row["of"])
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


def score(rows, found):
    """Pairwise and B-cubed scores, recall by edit, confusions by kind of look-alike."""
    pairs = lambda counts: sum(n * (n - 1) // 2 for n in counts)
    both = Counter((r["cluster"], f) for r, f in zip(rows, found))
    truth, ours = Counter(r["cluster"] for r in rows), Counter(found)
    hit, said, real = pairs(both.values()), pairs(ours.values()), pairs(truth.values())
    p, r = hit / max(said, 1), hit / max(real, 1)
    bp = sum(n * n / ours[f] for (_, f), n in both.items()) / len(rows)
    br = sum(n * n / truth[c] for (c, _), n in both.items()) / len(rows)
    exact = sum(1 for (c, f), n in both.items() if n == truth[c] == ours[f])
    edits = defaultdict(lambda: [0, 0])
    for i, row in enumerate(rows):
        if row["of"] is not None:
            edits[row["edit"]][0] += found[i] == found[row["of"]]
            edits[row["edit"]][1] += 1
    f1 = lambda a, b: 2 * a * b / (a + b) if a + b else 0.0
    # A found cluster counts as right when it is a true one, member for member.
    return {
        "pairs": {"precision": round(p, 4), "recall": round(r, 4), "f1": round(f1(p, r), 4)},
        "b_cubed": {"precision": round(bp, 4), "recall": round(br, 4), "f1": round(f1(bp, br), 4)},
        "whole_clusters_f1": round(f1(exact / len(ours), exact / len(truth)), 4),
        "together": {k: f"{a / n:.4f} of {n}" for k, (a, n) in sorted(edits.items())},
    }


def main():
    top = argparse.ArgumentParser()
    sub = top.add_subparsers(dest="what", required=True)
    a = sub.add_parser("make")
    a.add_argument("out")
    a.add_argument("--size", type=int, default=100_000)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--held", action="store_true")
    a.add_argument("--real")
    s = sub.add_parser("score")
    s.add_argument("set")
    s.add_argument("clusters")
    args = top.parse_args()
    if args.what == "make":
        return make(args)
    rows = [json.loads(line) for line in open(args.set, encoding="utf-8")]
    found = [int(line) for line in open(args.clusters)]
    print(json.dumps(score(rows, found), indent=1))


if __name__ == "__main__":
    main()
