"""Makes a tiny model with random weights, a tokenizer of the rows' own words and Qwen3's chat template:
`tiny.py TEMPLATE FOLDER ROWS.jsonl...`. With it every trainer's command runs on a processor, in seconds."""

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

template, folder, rows = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
WORDS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=6000,
    special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
)
tokenizer.train(rows, trainer)
tokenizer.add_tokens(WORDS)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
fast.chat_template = template.read_text(encoding="utf-8")
fast.save_pretrained(folder)

config = Qwen3Config(
    vocab_size=len(fast),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    eos_token_id=fast.eos_token_id,
    pad_token_id=fast.pad_token_id,
)
Qwen3ForCausalLM(config).save_pretrained(folder)
print("tiny ok", len(fast))
