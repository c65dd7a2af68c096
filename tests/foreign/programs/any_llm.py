"""any-llm: a batch of a file, and live requests, streamed too."""

from __future__ import annotations

import json
import os
import sys
import time

from any_llm import AnyLLM

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]
chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
client = AnyLLM.create("openai")

batch = client.create_batch(input_file_path=os.environ["BATCH_FILE"], endpoint="/v1/chat/completions")
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.retrieve_batch(batch.id)
streams = [client.completion(model=model, messages=chat, stream=True) for chat in chats]

answers = {
    "batch": [item.result.choices[0].message.content for item in client.retrieve_batch_results(batch.id).results],
    "live": [client.completion(model=model, messages=chat).choices[0].message.content for chat in chats],
    "stream": [
        "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) for stream in streams
    ],
}
print(json.dumps(answers))
