"""Asks a trainer's own loader what it would learn of a profile's rows: `probe.py TRAINER PROFILE_FOLDER MODEL ROWS.jsonl`.
Runs in the trainer's environment. ROWS are the dataset's own rows, less those that the profile leaves out."""

import json
import os
import runpy
import sys
from pathlib import Path

import labels

def decoded(tokenizer, encoded):
    """The learned tokens of every row as text."""
    for row in encoded:
        yield tokenizer.decode([t for t in row["labels"] if t != -100], skip_special_tokens=False)


def by_script(folder, model):
    """TRL: the profile's own script up to the training, with the trainer that it made."""
    from trl import SFTTrainer

    seen = {}

    def stop(self, *args, **kwargs):
        seen["trainer"] = self
        raise KeyboardInterrupt

    SFTTrainer.train = stop
    os.environ["BASE_MODEL"] = model
    try:
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    except KeyboardInterrupt:
        pass
    made = seen["trainer"]
    batch = made.data_collator([made.train_dataset[at] for at in range(len(made.train_dataset))])
    rows = [{"labels": labels_of.tolist()} for labels_of in batch["labels"]]
    return list(decoded(made.processing_class, rows))


def axolotl(folder, model):
    from axolotl.cli.config import load_cfg
    from axolotl.loaders import load_tokenizer
    from axolotl.utils.data import prepare_datasets

    os.chdir(folder)
    cfg = load_cfg("axolotl.yaml", base_model=model, dataset_prepared_path=str(folder / "prepared-probe"))
    tokenizer = load_tokenizer(cfg)
    return list(decoded(tokenizer, prepare_datasets(cfg, tokenizer)[0]))


def llamafactory(folder, model):
    import yaml
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    os.chdir(folder)
    settings = yaml.safe_load(Path("train.yaml").read_text()) | {"model_name_or_path": model, "bf16": False}
    model_args, data_args, training_args, _, _ = get_train_args(settings)
    made = load_tokenizer(model_args)
    template = get_template_and_fix_tokenizer(made["tokenizer"], data_args)
    dataset = get_dataset(template, model_args, data_args, training_args, stage="sft", **made)["train_dataset"]
    return list(decoded(made["tokenizer"], dataset))


def swift(folder, model):
    from swift.dataset import load_dataset
    from swift import get_processor, get_template

    processor = get_processor(model, model_type="qwen3")
    template = get_template(processor, template_type="qwen3", agent_template="hermes", max_length=100_000)
    template.set_mode("train")
    dataset, _ = load_dataset([str(folder / "train.jsonl")], split_dataset_ratio=0)
    return list(decoded(processor, [template.encode(row) for row in dataset]))


def unsloth(folder, model):
    from transformers import AutoTokenizer

    sys.path.insert(0, str(folder))
    import rows as profile

    tokenizer = AutoTokenizer.from_pretrained(model)
    return list(decoded(tokenizer, profile.load(folder / "train.jsonl", tokenizer, 100_000)))


READERS = {
    "trl": by_script, "hermes": by_script, "axolotl": axolotl, "llamafactory": llamafactory, "ms-swift": swift, "unsloth": unsloth,
}

# Loaders start processes that read this file once more.
if __name__ == "__main__":
    trainer, folder, model, rows_file = sys.argv[1:]
    with open(rows_file, encoding="utf-8") as lines:
        wanted = [json.loads(line) for line in lines]
    learned = READERS[trainer](Path(folder).resolve(), str(Path(model).resolve()))
    labels.check(trainer, learned, wanted)
