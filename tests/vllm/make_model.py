"""Make a tiny causal language model with random weights, 8 MB, without any download.

usage: make_model.py DIRECTORY

A byte-level BPE tokenizer trained on sources that ship with Python, a Qwen2 configuration, a chat template and seeded
weights. The same seed and the same Python give the same bytes.
"""

import json
import sys
import sysconfig
from pathlib import Path

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SEED = 0
VOCABULARY = 2048
# Deep and narrow: small on disk, yet a step takes longer than handing its tokens on. An engine that computes ahead of its
# own API server never has a queue to look at.
HIDDEN, LAYERS, HEADS, KV_HEADS = 128, 24, 2, 1
INNER, HEAD = HIDDEN * 2, HIDDEN // HEADS
CONTEXT = 8192
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["LICENSE.txt", "argparse.py", "asyncio/streams.py", "http/client.py", "json/__init__.py", "typing.py",
         "socket.py", "threading.py", "zipfile.py", "logging/__init__.py"]
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + (message['content'] if message['content'] is string "
    "else (message['content'] | map(attribute='text') | join(''))) + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
    "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 2,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "initializer_range": 0.02,
}
GENERATION = {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT, "bos_token": None,
    "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "add_bos_token": False,
    "add_prefix_space": False, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
    "added_tokens_decoder": {
        str(number): {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                      "special": True}
        for number, text in enumerate(SPECIAL)
    },
}


def tokenizer():
    root = Path(sysconfig.get_paths()["stdlib"])
    texts = [path.read_text(encoding="utf-8") for path in map(root.joinpath, TEXTS) if path.exists()]
    result = Tokenizer(models.BPE())
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    result.decoder = decoders.ByteLevel()
    result.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    result.train_from_iterator(texts, trainer)
    assert result.get_vocab_size() == VOCABULARY, "the texts are too short for this vocabulary"
    return result


def weights():
    generator = numpy.random.default_rng(SEED)

    def random(*shape):
        return (generator.standard_normal(shape) * 0.05).astype(numpy.float16)

    def ones():
        return numpy.ones(HIDDEN, numpy.float16)

    tensors = {"model.embed_tokens.weight": random(VOCABULARY, HIDDEN), "model.norm.weight": ones()}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors[prefix + "input_layernorm.weight"] = ones()
        tensors[prefix + "post_attention_layernorm.weight"] = ones()
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = random(heads * HEAD, HIDDEN)
            tensors[f"{prefix}self_attn.{name}_proj.bias"] = random(heads * HEAD)
        tensors[prefix + "self_attn.o_proj.weight"] = random(HIDDEN, HEADS * HEAD)
        tensors[prefix + "mlp.gate_proj.weight"] = random(INNER, HIDDEN)
        tensors[prefix + "mlp.up_proj.weight"] = random(INNER, HIDDEN)
        tensors[prefix + "mlp.down_proj.weight"] = random(HIDDEN, INNER)
    return tensors


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(out / "tokenizer.json"))
    for name, content in (("config", CONFIG), ("generation_config", GENERATION), ("tokenizer_config", TOKENIZER)):
        (out / f"{name}.json").write_text(json.dumps(content, indent=1))
    save_file(weights(), out / "model.safetensors", metadata={"format": "pt"})


main()
