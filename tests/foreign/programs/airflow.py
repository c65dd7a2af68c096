"""Airflow's provider of OpenAI: its hook, and its operator of batches."""

from __future__ import annotations

import json
import os
import sys

from airflow.providers.openai.hooks.openai import OpenAIHook
from airflow.providers.openai.operators.openai import OpenAITriggerBatchOperator

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]
hook = OpenAIHook(conn_id="batchyard")


def answers_of(batch_id: str) -> list[str]:
    output = hook.conn.files.content(hook.get_batch(batch_id).output_file_id).text
    return [json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] for line in output.splitlines()]


file = hook.upload_file(os.environ["BATCH_FILE"], purpose="batch")
batch = hook.create_batch(file_id=file.id, endpoint="/v1/chat/completions")
hook.wait_for_batch(batch.id, wait_seconds=0.2)
operator = OpenAITriggerBatchOperator(
    task_id="ask", conn_id="batchyard", file_id=file.id, endpoint="/v1/chat/completions", wait_seconds=0.2
)
chats = [[{"role": "user", "content": prompt}] for prompt in prompts]

answers = {
    "batch": answers_of(batch.id),
    "batch of an operator": answers_of(operator.execute({})),
    "live": [hook.create_chat_completion(messages=chat, model=model)[0].message.content for chat in chats],
    "embeddings": [prompt for prompt in prompts if hook.create_embeddings(prompt, model=os.environ["EMBEDDING_MODEL"])],
}
print(json.dumps(answers))
