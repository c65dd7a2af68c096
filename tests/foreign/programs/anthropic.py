"""The package `anthropic`: a message batch and its results; live requests, streamed too."""

from __future__ import annotations

import json
import os
import sys
import time

from anthropic import Anthropic

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]
client = Anthropic(max_retries=0)
bodies = [{"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]} for prompt in prompts]

batch = client.messages.batches.create(
    requests=[{"custom_id": str(number), "params": body} for number, body in enumerate(bodies)]
)
while batch.processing_status != "ended":
    time.sleep(0.2)
    batch = client.messages.batches.retrieve(batch.id)
by_id = {result.custom_id: result.result.message for result in client.messages.batches.results(batch.id)}
streamed = []
for body in bodies:
    with client.messages.stream(**body) as stream:
        streamed.append("".join(stream.text_stream))

answers = {
    "batch": [by_id[str(number)].content[0].text for number in range(len(prompts))],
    "live": [client.messages.create(**body).content[0].text for body in bodies],
    "stream": streamed,
}
print(json.dumps(answers))
