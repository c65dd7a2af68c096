"""The package `openai`: a file, a batch of it, its answers; live requests, streamed too; Responses and embeddings."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from openai import OpenAI

prompts, model, file = json.loads(sys.argv[1]), os.environ["MODEL"], Path(os.environ["BATCH_FILE"])
client = OpenAI(max_retries=0)
chats = [[{"role": "user", "content": prompt}] for prompt in prompts]

batch = client.batches.create(
    input_file_id=client.files.create(file=file, purpose="batch").id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)
lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
in_parts = client.uploads.upload_file_chunked(file=file, mime_type="application/jsonl", purpose="batch")
streams = [client.chat.completions.create(model=model, messages=chat, stream=True) for chat in chats]
vectors = client.embeddings.create(model=os.environ["EMBEDDING_MODEL"], input=prompts)

answers = {
    "batch": [line["response"]["body"]["choices"][0]["message"]["content"] for line in lines],
    "upload in parts": [
        json.loads(line)["body"]["messages"][0]["content"]
        for line in client.files.content(in_parts.file.id).text.splitlines()
    ],
    "live": [client.chat.completions.create(model=model, messages=chat).choices[0].message.content for chat in chats],
    "stream": [
        "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) for stream in streams
    ],
    "responses": [client.responses.create(model=model, input=prompt).output_text for prompt in prompts],
    "embeddings": [prompt for prompt, vector in zip(prompts, vectors.data, strict=True) if vector.embedding],
}
print(json.dumps(answers))
