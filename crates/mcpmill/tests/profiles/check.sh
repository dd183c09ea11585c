#!/bin/sh
# Has the trainers' own packages read, and train on, the hard rows in every profile: `check.sh FOLDER`.
# Needs uv and some 30 GB below FOLDER; the results stand in datasets/PROFILES.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
to=$(cd "$1" && pwd)
export CUDA_VISIBLE_DEVICES='' HF_HUB_OFFLINE=1 HF_HOME="$to/hf" DO_NOT_TRACK=1 AXOLOTL_DO_NOT_TRACK=1

(cd "$here/../.." && cargo run --release --example write_profiles -- tests/profiles/hard.jsonl "$to/hard")
# Rows that hold marks of the format in their words are left out by all profiles but OpenAI's.
grep -v -F '<|im_end|>' "$here/hard.jsonl" > "$to/rows.jsonl"

environment() { # NAME PACKAGES...
  name=$1
  shift
  uv venv -q --allow-existing "$to/$name"
  uv pip install -q --python "$to/$name/bin/python" "$@"
}
environment trl trl peft
environment llamafactory llamafactory
environment ms-swift ms-swift
environment axolotl axolotl
environment unsloth unsloth

templates=$("$to/trl/bin/python" -c 'import pathlib, trl; print(pathlib.Path(trl.__file__).parent / "chat_templates")')
"$to/trl/bin/python" "$here/tiny.py" "$templates/qwen3.jinja" "$to/tiny" "$to/rows.jsonl"

probe() { # TRAINER ENVIRONMENT
  "$to/$2/bin/python" "$here/probe.py" "$1" "$to/hard/$1" "$to/tiny" "$to/rows.jsonl"
}
probe trl trl
probe hermes trl
probe unsloth unsloth
probe axolotl axolotl
probe llamafactory llamafactory
probe ms-swift ms-swift

# The command of every profile's README, with the tiny model and what a processor lacks.
(cd "$to/hard/trl" && BASE_MODEL="$to/tiny" "$to/trl/bin/python" train.py)
(cd "$to/hard/hermes" && BASE_MODEL="$to/tiny" "$to/trl/bin/python" train.py)
(cd "$to/hard/llamafactory" && PATH="$to/llamafactory/bin:$PATH" llamafactory-cli train train.yaml model_name_or_path="$to/tiny" use_cpu=true)
(cd "$to/hard/ms-swift" && PATH="$to/ms-swift/bin:$PATH" BASE_MODEL="$to/tiny" sh train.sh --model_type qwen3 --template qwen3 --use_cpu true)
