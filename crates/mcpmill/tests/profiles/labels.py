"""What a trainer would learn, compared with what the rows say: `check(name, learned, rows)`.

`learned` has one text for each row of the trainer: the tokens whose labels are not masked. Calls are parsed back out of
it, in the marks that models of the Qwen and Hermes kind write."""

import json
import re
from collections import Counter

CALL = re.compile(r"<tool_call>\s*(.+?)\s*</tool_call>", re.DOTALL)


def canonical(value):
    """JSON that tells 1 from 1.0, `{}` from nothing and keeps nulls."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def wanted(rows):
    """Calls and texts of the turns that are to be learned, counted, and texts of masked ones."""
    calls, texts, masked = Counter(), Counter(), []
    for row in rows:
        for message, loss in zip(row["messages"], row["loss"], strict=True):
            if message["role"] != "assistant":
                continue
            if loss and message.get("content"):
                texts[message["content"].strip()] += 1
            for call in message.get("tool_calls") or []:
                function = call["function"]
                parsed = (function["name"], canonical(json.loads(function["arguments"])))
                if loss:
                    calls[parsed] += 1
                else:
                    masked.append(parsed)
            if not loss and message.get("content"):
                masked.append(message["content"])
    return calls, texts, masked


def plain(learned):
    """Learned text of a turn without calls, thoughts and marks."""
    text = re.sub(r"<think>.*?</think>", "\n", CALL.sub("", learned), flags=re.DOTALL)
    for mark in ("<|im_start|>assistant", "<|im_end|>", "<|endoftext|>"):
        text = text.replace(mark, "\n")
    return text.strip()


def check(name, learned, rows):
    """Exits unless exactly the calls of learned turns are learned, equal in value, with all their texts and no more."""
    calls, texts, masked = wanted(rows)
    got = Counter()
    for text in learned:
        for call in CALL.findall(text):
            parsed = json.loads(call)
            got[(parsed["name"], canonical(parsed["arguments"]))] += 1
    assert got == calls, f"{name}: missing {list((calls - got).items())[:3]}, too many {list((got - calls).items())[:3]}"
    rest = "\n".join(plain(text) for text in learned)
    for text, count in texts.items():
        assert rest.count(text) >= count, f"{name}: {rest.count(text)} of {count} learned: {text!r}"
    # Nothing else is learned: no words of users or tools, none of masked turns.
    for text in sorted(texts, key=len, reverse=True):
        rest = rest.replace(text, "")
    assert not rest.strip(), f"{name}: learned, and not to be: {rest.strip()[:300]!r}"
    print(f"{name} ok: {sum(calls.values())} calls and {sum(texts.values())} texts learned, {len(masked)} masked not")
