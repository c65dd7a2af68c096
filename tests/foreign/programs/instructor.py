"""Instructor: objects of a schema, from a batch and from live requests."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Literal

import instructor
from instructor.batch import BatchProcessor
from openai import OpenAI
from pydantic import BaseModel

prompts, model = json.loads(sys.argv[1]), os.environ["STRUCTURED_MODEL"]
chats = [[{"role": "user", "content": prompt}] for prompt in prompts]


class Label(BaseModel):
    """What a text is."""

    label: Literal["question", "statement"]


processor = BatchProcessor(f"openai/{model}", Label)
requests = processor.create_batch_from_messages(chats, max_tokens=64)
batch_id = processor.submit_batch(requests)
while processor.get_batch_status(batch_id)["status"] not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
client = instructor.from_openai(OpenAI(max_retries=0), mode=instructor.Mode.JSON_SCHEMA)

answers = {
    "batch": [result.result.label for result in processor.get_results(batch_id)],
    "live": [
        client.chat.completions.create(
            model=model, messages=chat, response_model=Label, max_retries=0, max_tokens=128, temperature=0
        ).label
        for chat in chats
    ],
}
print(json.dumps(answers))
