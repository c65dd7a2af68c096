"""pydantic-ai: a batch of model requests, and agents: with texts and a tool."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta

from pydantic_ai import Agent, ModelRequest
from pydantic_ai.direct import model_request_batch
from pydantic_ai.models.batch import BatchRequest

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]


async def main() -> None:
    requests = [
        BatchRequest(custom_id=str(number), messages=[ModelRequest.user_text_prompt(prompt)])
        for number, prompt in enumerate(prompts)
    ]
    batch = await model_request_batch(
        f"openai-responses:{model}",
        requests,
        poll_interval=timedelta(seconds=1),
        max_poll_interval=timedelta(seconds=1),
    )
    agent = Agent(f"openai-chat:{model}")
    streamed = []
    for prompt in prompts:
        async with agent.run_stream(prompt) as stream:
            streamed.append(await stream.get_output())
    answers = {
        "batch": [response.text for response in batch],
        "live": [(await agent.run(prompt)).output for prompt in prompts],
        "stream": streamed,
    }
    print(json.dumps(answers))


asyncio.run(main())
