"""Bespoke Curator: a data set of prompts as a batch. Its live requests need a tokenizer that it fetches."""

from __future__ import annotations

import json
import os
import sys

from bespokelabs import curator

prompts, model = json.loads(sys.argv[1]), os.environ["MODEL"]
server = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
language_model = curator.LLM(
    model_name=model, backend="openai", batch=True, backend_params={**server, "batch_check_interval": 1}
)
print(json.dumps({"batch": list(language_model(prompts).dataset["response"])}))
