"""LiteLLM: a file and a batch of it, and live requests, streamed too."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import litellm

prompts, model = json.loads(sys.argv[1]), f"openai/{os.environ['MODEL']}"
chats = [[{"role": "user", "content": prompt}] for prompt in prompts]

with Path(os.environ["BATCH_FILE"]).open("rb") as file:
    uploaded = litellm.create_file(file=file, purpose="batch", custom_llm_provider="openai")
batch = litellm.create_batch(
    completion_window="24h",
    endpoint="/v1/chat/completions",
    input_file_id=uploaded.id,
    custom_llm_provider="openai",
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = litellm.retrieve_batch(batch_id=batch.id, custom_llm_provider="openai")
content = litellm.file_content(file_id=batch.output_file_id, custom_llm_provider="openai").content
lines = [json.loads(line) for line in content.splitlines()]
streams = [litellm.completion(model=model, messages=chat, stream=True) for chat in chats]

answers = {
    "batch": [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines],
    "live": [litellm.completion(model=model, messages=chat).choices[0].message.content for chat in chats],
    "stream": ["".join(chunk.choices[0].delta.content or "" for chunk in stream) for stream in streams],
}
print(json.dumps(answers))
