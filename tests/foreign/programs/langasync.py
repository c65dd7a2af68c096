"""langasync: a chain of LangChain as a batch."""

from __future__ import annotations

import asyncio
import json
import os
import sys

from langasync import BatchPoller, batch_chain
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]


async def main() -> None:
    chain = ChatPromptTemplate.from_template("{prompt}") | ChatOpenAI(model=model) | StrOutputParser()
    job = await batch_chain(chain).submit([{"prompt": prompt} for prompt in prompts])
    async for ended in BatchPoller().wait_all():
        if ended.job_id == job.job_id:
            print(json.dumps({"batch": ended.results}))


asyncio.run(main())
