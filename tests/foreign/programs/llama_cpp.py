"""Serves a Qwen2 model's folder with llama.cpp: `python llama_cpp.py FOLDER HOST PORT`. It writes it as GGUF first."""

import json
import signal
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(folder: Path, target: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    vocabulary = {number: token for token, number in tokenizer["model"]["vocab"].items()} | special
    numbers = range(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([vocabulary.get(number, f"[{number}]") for number in numbers])
    kind = gguf.TokenType
    kinds = {True: kind.NORMAL, False: kind.UNUSED}
    writer.add_token_types([kind.CONTROL if number in special else kinds[number in vocabulary] for number in numbers])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text())
    data = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensor = np.frombuffer(data[begin:end], np.float16).reshape(entry["shape"]).astype(np.float32)
        layer, _, kind_of_tensor = name.removeprefix("model.").rpartition(".")
        layer = {"embed_tokens": "token_embd", "norm": "output_norm"}.get(layer, layer)
        if layer.startswith("layers."):
            _, number, part = layer.split(".", 2)
            layer = f"blk.{number}.{PARTS[part]}"
        writer.add_tensor(f"{layer}.{kind_of_tensor}", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


parameters = xllamacpp.CommonParams()
with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
    write(Path(sys.argv[1]), file.name)
    parameters.model.path = file.name
    parameters.model_alias = {"llama_cpp"}
    parameters.hostnames, parameters.port = [sys.argv[2]], int(sys.argv[3])
    parameters.n_parallel, parameters.n_ctx, parameters.cpuparams.n_threads = 4, 1024, 1
    server = xllamacpp.Server(parameters)
    print("listens on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
