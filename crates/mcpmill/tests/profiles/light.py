"""Checks profiles with what installs in seconds: the models' own chat templates as TRL's package carries them, rendered as
transformers renders them, and the types of OpenAI's client. `light.py PROFILES ROWS.jsonl`."""

import importlib.util
import json
import sys
from pathlib import Path

import labels
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter

folder, rows_file = Path(sys.argv[1]), sys.argv[2]
TEMPLATES = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


rows = lines(rows_file)


def kept(profile):
    """Those of the rows that the profile did not leave out."""
    ids = {row["id"] for row in lines(folder / profile / "train.jsonl")}
    return [row for row in rows if row["id"] in ids]


class Generation(Extension):
    """`{% generation %}`, with which training templates say what is the assistant's: marked here."""

    tags = {"generation"}

    def parse(self, parser):
        from jinja2 import nodes

        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        mark = lambda text: nodes.Output([nodes.TemplateData(text)], lineno=line)
        return [mark("\x00"), *body, mark("\x01")]


def template(name):
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
    # As transformers has it: no characters are escaped.
    env.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)

    def fail(message):
        raise ValueError(message)

    env.globals["raise_exception"] = fail
    return env.from_string((TEMPLATES / f"{name}_training.jinja").read_text(encoding="utf-8"))


for profile in ("trl", "unsloth"):
    for model in ("qwen2_5", "qwen3"):
        render = template(model).render
        learned = []
        for row in lines(folder / profile / "train.jsonl"):
            tools = json.loads(row["tools"])
            prompt = render(messages=row["prompt"], tools=tools, add_generation_prompt=False)
            whole = render(messages=row["prompt"] + row["completion"], tools=tools, add_generation_prompt=False)
            common = next((at for at, (a, b) in enumerate(zip(prompt, whole)) if a != b), min(len(prompt), len(whole)))
            assert json.dumps(tools[0], ensure_ascii=False) in whole, "the tools stand in the text"
            generated = whole[common:].split("\x00")[1:]
            learned.extend(part.split("\x01")[0] for part in generated)
        labels.check(f"{profile} by {model}", learned, kept(profile))

labels.check("hermes", [row["completion"] for row in lines(folder / "hermes" / "train.jsonl")], kept("hermes"))

message, tool = TypeAdapter(list[ChatCompletionMessageParam]), TypeAdapter(list[ChatCompletionToolParam])
learned = []
written = lines(folder / "openai" / "train.jsonl")
for row in written:
    assert set(row) == {"messages", "tools", "parallel_tool_calls"}, row.keys()
    list(message.validate_python(row["messages"]))
    list(tool.validate_python(row["tools"]))
    assert row["messages"][-1]["role"] == "assistant" and row["messages"][-1]["weight"] == 1, row["messages"][-1]
    for said in row["messages"]:
        assert ("weight" in said) == (said["role"] == "assistant") and said.get("weight", 0) in (0, 1), said
        if said.get("weight"):
            calls = [call["function"] for call in said.get("tool_calls", [])]
            texts = [json.dumps({"name": c["name"], "arguments": json.loads(c["arguments"])}) for c in calls]
            learned.append((said["content"] or "") + "".join(f"<tool_call>{text}</tool_call>" for text in texts))
assert len(written) == len(rows), "OpenAI's format holds every row"
# Marks are words like others there: what is compared has none.
plain = [row for row in rows if "</tool_call>" not in json.dumps(row["messages"])]
marked = len(rows) - len(plain)
labels.check("openai", [text for text in learned if "<|im_end|>" not in text], plain)
print(f"openai: {len(written)} rows, {marked} with marks in their words")
