"""autobatcher: calls of chat completions, Responses and embeddings, collected into batches."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from autobatcher import BatchOpenAI

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]


async def main() -> None:
    client = BatchOpenAI(
        api_key=os.environ["OPENAI_API_KEY"],
        base_url=os.environ["OPENAI_BASE_URL"],
        completion_window="24h",
        batch_window_seconds=0.5,
        poll_interval_seconds=0.5,
    )
    chats, responses, vectors = await asyncio.gather(
        asyncio.gather(
            *(
                client.chat.completions.create(model=model, messages=[{"role": "user", "content": prompt}])
                for prompt in prompts
            )
        ),
        asyncio.gather(*(client.responses.create(model=model, input=prompt) for prompt in prompts)),
        asyncio.gather(
            *(client.embeddings.create(model=os.environ["EMBEDDING_MODEL"], input=prompt) for prompt in prompts)
        ),
    )
    await client.close()
    answers = {
        "batch": [chat.choices[0].message.content for chat in chats],
        "batch of responses": [response.output_text for response in responses],
        "batch of embeddings": [
            prompt for prompt, vector in zip(prompts, vectors, strict=True) if vector.data[0].embedding
        ],
    }
    print(json.dumps(answers))


asyncio.run(main())
