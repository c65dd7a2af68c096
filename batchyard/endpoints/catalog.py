"""The endpoints that a request may name, one entry each."""

import base64
import io
import wave
from dataclasses import replace

from batchyard.endpoints.base import ACCOUNT, Endpoint


def _silence() -> str:
    """Return a short silence as a data: URL."""
    with io.BytesIO() as file:
        with wave.open(file, "wb") as sound:
            sound.setparams((1, 1, 16_000, 0, "NONE", ""))
            sound.writeframes(b"\x80" * 3_200)
        return f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode()}"


CHAT = Endpoint(
    path="/v1/chat/completions",
    body_class="chat:ChatBody",
    content=("messages",),
    leading=("tools",),
    output_limits=("max_completion_tokens", "max_tokens"),
    result="text",
    example={"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8},
)
COMPLETIONS = Endpoint(
    path="/v1/completions",
    body_class="chat:CompletionBody",
    content=("prompt",),
    output_limits=("max_tokens",),
    result="text",
    example={"prompt": "Once upon a time", "max_tokens": 8},
)
EMBEDDINGS = Endpoint(
    path="/v1/embeddings",
    body_class="pooling:EmbeddingBody",
    content=("input", "messages"),
    result="vectors",
    example={"input": "Say hello."},
)
RESPONSES = Endpoint(
    path="/v1/responses",
    body_class="responses:ResponseBody",
    content=("input",),
    leading=("tools", "instructions"),
    system="instructions",
    without_effect=ACCOUNT | {"background"},
    output_limits=("max_output_tokens",),
    result="text",
    example={"input": "Say hello.", "max_output_tokens": 8},
)
MESSAGES = Endpoint(
    path="/v1/messages",
    body_class="messages:MessagesBody",
    content=("messages",),
    leading=("tools", "system"),
    system="system",
    output_limits=("max_tokens",),
    result="text",
    example={"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8},
)
COUNT_TOKENS = Endpoint(
    path="/v1/messages/count_tokens",
    body_class="messages:CountBody",
    content=("messages",),
    leading=("tools", "system"),
    system="system",
    result="text",
    example={"messages": [{"role": "user", "content": "Say hello."}]},
)
SCORE = Endpoint(
    path="/v1/score",
    aliases=("/score",),
    body_class="scoring:ScoreBody",
    content=("queries", "text_1", "data_1", "documents", "items", "text_2", "data_2"),
    leading=("instruction",),
    result="scores",
    example={"queries": "A train leaves at noon.", "documents": ["When does the train leave?", "It rains."]},
)
RERANK = Endpoint(
    path="/v1/rerank",
    aliases=("/rerank", "/v2/rerank"),
    body_class="scoring:RerankBody",
    content=("query", "documents"),
    leading=("instruction",),
    result="scores",
    example={"query": "When does the train leave?", "documents": ["A train leaves at noon.", "It rains."]},
)
CLASSIFY = Endpoint(
    path="/classify",
    aliases=("/v1/classify",),
    body_class="pooling:ClassifyBody",
    content=("input", "messages"),
    result="labels",
    example={"input": "The train was late."},
)
POOLING = Endpoint(
    path="/pooling",
    aliases=("/v1/pooling",),
    body_class="pooling:PoolingBody",
    content=("input", "messages"),
    result="vectors",
    example={"input": "The train was late."},
)
SYSTEMONE = Endpoint(
    path="/v1/systemone",
    body_class="decisions:DecisionBody",
    content=("state",),
    leading=("instructions",),
    result="labels",
    example={"state": "The train was late.", "questions": {"late": {"type": "noul", "instructions": "Was it late?"}}},
)
GENERATIVE_SCORING = Endpoint(
    path="/generative_scoring",
    body_class="scoring:GenerativeScoringBody",
    content=("query", "items"),
    result="scores",
    example={"query": "Is it late? ", "items": ["The train was late.", "It rains."], "label_token_ids": [1, 2]},
)
MODERATIONS = Endpoint(
    path="/v1/moderations",
    body_class="pooling:ModerationBody",
    content=("input",),
    result="labels",
    example={"input": "The train was late."},
)
GENERATE = Endpoint(
    path="/inference/v1/generate",
    body_class="tokens:GenerateBody",
    content=("token_ids",),
    output_limits=("sampling_params.max_tokens",),
    result="tokens",
    example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 8}},
)
TOKENIZE = Endpoint(
    path="/tokenize",
    aliases=("/v1/tokenize",),
    body_class="tokens:TokenizeBody",
    content=("prompt", "messages"),
    leading=("tools",),
    result="tokens",
    example={"prompt": "Say hello."},
)
DETOKENIZE = Endpoint(
    path="/detokenize",
    aliases=("/v1/detokenize",),
    body_class="tokens:DetokenizeBody",
    content=("tokens",),
    result="text",
    example={"tokens": [1, 2]},
)
TRANSCRIPTIONS = Endpoint(
    path="/v1/audio/transcriptions",
    body_class="audio:TranscriptionBody",
    content=("file_url",),
    leading=("prompt",),
    output_limits=("max_completion_tokens",),
    result="text",
    example={"file_url": _silence(), "language": "en"},
)
TRANSLATIONS = replace(TRANSCRIPTIONS, path="/v1/audio/translations", body_class="audio:TranslationBody")
AUDIO = (TRANSCRIPTIONS.path, TRANSLATIONS.path)
"""The endpoints whose requests name a file of audio."""

ENDPOINTS: dict[str, Endpoint] = {
    entry.path: entry
    for entry in (
        *(CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS, SCORE, RERANK, CLASSIFY, POOLING, SYSTEMONE),
        *(GENERATIVE_SCORING, MODERATIONS, GENERATE, TOKENIZE, DETOKENIZE, COUNT_TOKENS),
        *(TRANSCRIPTIONS, TRANSLATIONS),
    )
}
"""Each endpoint by its path, the most usual first."""
PATHS: dict[str, str] = {alias: entry.path for entry in ENDPOINTS.values() for alias in (entry.path, *entry.aliases)}
"""The path of each endpoint by its path and its other names."""
