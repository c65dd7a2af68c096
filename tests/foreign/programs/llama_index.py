"""LlamaIndex: a chat model of a server like OpenAI's, whole answers and streams, and embeddings."""

from __future__ import annotations

import json
import os
import sys

from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]
server = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"], "max_retries": 0}
chat = OpenAILike(model=model, is_chat_model=True, **server)
vectors = OpenAILikeEmbedding(model_name=os.environ["EMBEDDING_MODEL"], **server)
chats = [[ChatMessage(role="user", content=prompt)] for prompt in prompts]

answers = {
    "live": [chat.chat(messages).message.content for messages in chats],
    "stream": ["".join(chunk.delta or "" for chunk in chat.stream_chat(messages)) for messages in chats],
    "embeddings": [
        prompt for prompt, vector in zip(prompts, vectors.get_text_embedding_batch(prompts), strict=True) if vector
    ],
}
print(json.dumps(answers))
