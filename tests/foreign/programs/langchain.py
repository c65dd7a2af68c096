"""LangChain: chat models, alone, many at once and streamed, and embeddings."""

from __future__ import annotations

import json
import os
import sys

from langchain_openai import ChatOpenAI, OpenAIEmbeddings

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]
chat = ChatOpenAI(model=model, max_retries=0)
responses = ChatOpenAI(model=model, max_retries=0, use_responses_api=True)
vectors = OpenAIEmbeddings(model=os.environ["EMBEDDING_MODEL"], check_embedding_ctx_length=False)

answers = {
    "live": [message.text for message in chat.batch(prompts)],
    "stream": ["".join(chunk.text for chunk in chat.stream(prompt)) for prompt in prompts],
    "responses": [responses.invoke(prompt).text for prompt in prompts],
    "embeddings": [prompt for prompt, vector in zip(prompts, vectors.embed_documents(prompts), strict=True) if vector],
}
print(json.dumps(answers))
