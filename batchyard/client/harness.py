"""Model `batchyard` of lm-evaluation-harness: each of its lists of requests is answered as a batch.

Importing this module registers it, after which `lm_eval.simple_evaluate(model="batchyard", …)` knows it. The command
`batchyard lm-eval` does that; lm-evaluation-harness itself has no plug-ins for models. Values are those of its own
model `vllm`: token ids as prompts, log-probabilities of prompts, texts cut at the same places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models import utils
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from pydantic import BaseModel, Field, PositiveInt, ValidationError

from batchyard import json_lines, models, settings
from batchyard.client import asking
from batchyard.client.api import ApiClient
from batchyard.endpoints import responses
from batchyard.endpoints.catalog import COMPLETIONS
from batchyard.errors import BatchyardError, ConfigurationError
from batchyard.schema_words import invalid_values
from batchyard.wording import suggestion

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

NAME = "batchyard"
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx")
"""Keys of a model's configuration that say how many tokens it reads."""
Score = tuple[float, bool]
"""The log-probability of a continuation, and whether it is the most likely one."""


class AnsweredRows(asking.RowResults):
    """What `read` returns of each answer, a row a request. `read` raises ValueError if an answer lacks it."""

    def __init__(self, read: Callable[[int, Mapping[str, Any]], Any]) -> None:
        super().__init__()
        self._read = read

    def keep(self, row: int, body: Mapping[str, Any]) -> str | None:
        try:
            self.values[row] = self._read(row, body)
        except ValueError as error:
            return str(error)
        return None


class HarnessArguments(BaseModel):
    """Arguments of the model beside its name. Those without a description are those of the model `vllm`."""

    tokenizer: str | None = Field(None, description="folder or hub id; by default that of the local models file")
    max_length: PositiveInt | None = Field(
        None, description="prompt and answer together; by default as the models file or the model itself says"
    )
    seed: int = Field(1234, description="of samples; greedy answers have none")
    window: str = Field("24h", description="until when all must be answered")
    again: bool = Field(False, description="compute everything anew, also where the same was asked before")
    progress: bool = True
    max_gen_toks: PositiveInt = 256
    add_bos_token: bool | None = None
    prefix_token_id: int | None = None
    truncation_side: Literal["left", "middle", "right"] = "left"
    think_end_token: str | None = None
    enable_thinking: bool | None = None
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    revision: str | None = None
    trust_remote_code: bool = False
    batch_size: Any = Field(None, description="ignored, as are the next two: the server decides")
    max_batch_size: Any = None
    device: Any = None


@register_model(NAME)
class BatchyardLM(TemplateLM):  # type: ignore[misc]  # lm-evaluation-harness has no types
    """A model of a Batchyard server."""

    def __init__(self, model: str, server: ApiClient | None = None, **arguments: Any) -> None:
        """Connect to the server, and load the tokenizer."""
        super().__init__()
        fields = HarnessArguments.model_fields
        unknown = next((name for name in arguments if name not in fields), None)
        if unknown is not None:
            remedy = suggestion(unknown, ("model", *fields), "{}")
            raise ConfigurationError(f"model batchyard has no argument {unknown}; {remedy}")
        try:
            self._arguments = own = HarnessArguments.model_validate(arguments)
        except ValidationError as error:
            raise ConfigurationError(f"model batchyard: {invalid_values(error, arguments)[0]}") from error
        self._how = asking.CallOptions(
            window=own.window, again=own.again, progress=own.progress, server=server, name="lm-eval"
        )
        self._server = self._how.connected()
        self._spec = asking.served(self._server, model, COMPLETIONS.path)
        self._model = model
        options = {"revision": own.revision, "trust_remote_code": own.trust_remote_code}
        self.tokenizer, longest = _tokenizer(model, own.tokenizer, options)
        self.max_length = own.max_length or longest or int(utils.resolve_max_length(None, self.tokenizer))
        self._template_arguments = dict(own.chat_template_args)
        if own.enable_thinking is not None:
            self._template_arguments["enable_thinking"] = own.enable_thinking

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        ids = (self._arguments.prefix_token_id, self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return int(next(token for token in ids if token is not None))

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
                **self._template_arguments,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the token ids of a text. One that a chat template has begun with BOS gets no second one."""
        if not string:
            return []
        if string.startswith(self.tokenizer.decode([self.prefix_token_id])):
            add_special_tokens = False
        wanted = add_special_tokens if add_special_tokens is not None else self._arguments.add_bos_token
        options = {} if wanted is None else {"add_special_tokens": wanted}
        return list(self.tokenizer(string, return_attention_mask=False, **options).input_ids)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the texts that the model generates, without the stop strings. One batch answers all."""
        texts: list[tuple[str, dict[str, Any]]] = [request.args for request in requests]
        ends: list[Sequence[str]] = []

        def bodies() -> Iterator[dict[str, Any]]:
            seen = Counter[bytes]()
            for text, arguments in texts:
                body, until = self._generation(text, arguments)
                ends.append(until)
                if body.get("temperature"):
                    # The same request may be there several times, for as many samples.
                    line = json_lines.line(body)
                    body.setdefault("seed", self._arguments.seed + seen[line])
                    seen[line] += 1
                yield body

        def read(row: int, body: Mapping[str, Any]) -> str:
            text = responses.output(body).text
            if text is None:
                raise ValueError("the answer has no text")
            return str(utils.postprocess_generated_text(text, list(ends[row]), self._arguments.think_end_token))

        answers: list[str] = self._ask(bodies(), read)
        for (text, arguments), answer in zip(texts, answers, strict=True):
            self.cache_hook.add_partial("generate_until", (text, arguments), answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, read in windows of the model's length. One batch reads all."""
        windows: list[tuple[None, list[int], list[int]]] = []
        counts = []
        for request in requests:
            # A place for the prefix and one for the token that is generated.
            rolling = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, max_seq_len=self.max_length - 2, context_len=1
            )
            of_text = [(None, *make_disjoint_window(window)) for window in rolling]
            windows += of_text
            counts.append(len(of_text))
        scores = iter(self._loglikelihood_tokens(windows))
        totals = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **ignored: Any
    ) -> list[Score]:
        """Return the scores of continuations behind their contexts, both token ids. One batch reads all."""
        longest = self.max_length - 1  # one token is generated
        prompts = [(context + continuation)[-longest:] for _, context, continuation in requests]
        starts = [
            len(prompt) - min(len(continuation), len(prompt) - 1)
            for prompt, (_, _, continuation) in zip(prompts, requests, strict=True)
        ]
        bodies = ({"prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1} for prompt in prompts)
        scores: list[Score] = self._ask(bodies, lambda row, body: score(body, prompts[row], starts[row]))
        for (key, _, _), each in zip(requests, scores, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, each)
        return scores

    def get_model_info(self) -> dict[str, Any]:
        """Return what the report says of the model beside its arguments."""
        ours = self._spec["batchyard"]
        return {f"batchyard_{name}": ours[name] for name in ("engine", "config_sha256", "simulated")}

    def _generation(self, text: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the body of a request that generates, but for its seed, and the strings that end its text."""
        sampling: dict[str, Any] = dict(
            utils.normalize_gen_kwargs(arguments, default_max_gen_toks=self._arguments.max_gen_toks)
        )
        eos = self.tokenizer.decode([self.eot_token_id]) or self.tokenizer.eos_token
        until: list[str] = utils.handle_stop_sequences(sampling.pop("until"), eos=eos)
        sampling.pop("do_sample", None)
        tokens, limit = utils.maybe_truncate(
            self.tok_encode(text) or [self.prefix_token_id],
            max_gen_toks=int(sampling.pop("max_gen_toks")),
            max_model_len=self.max_length,
            side=self._arguments.truncation_side,
        )
        # A reasoning model would stop at them while it thinks; its answer is cut at them afterwards.
        stop = [end for end in until if end == eos] if self._arguments.think_end_token else until
        body = {"prompt": tokens, "max_tokens": limit, "stop": stop, "skip_special_tokens": False, **sampling}
        return body, until

    def _ask(self, bodies: Iterable[Mapping[str, Any]], read: Callable[[int, Mapping[str, Any]], Any]) -> list[Any]:
        """Return what `read` makes of the answer to each body. Raises BatchyardError if one has none."""
        results = AnsweredRows(read)
        lines = asking.requests(COMPLETIONS.path, bodies, lambda body: {"model": self._model, **body}, results)
        asking.ask(self._server, self._spec, COMPLETIONS.path, lines, results, self._how)
        if errors := [error for error in results.errors if error is not None]:
            raise BatchyardError(
                f"{len(errors)} of {len(results)} requests have no answer, the first because of {errors[0]}; the same "
                "command again asks for those that failed for a passing reason"
            )
        return results.values


def score(body: Mapping[str, Any], prompt: Sequence[int], start: int) -> Score:
    """Return the log-probability of a prompt's tokens from `start` on, and whether each is the most likely one.

    `body`: a completion's, with vLLM's `prompt_logprobs`.
    Raises ValueError: the body lacks one of them.
    """
    choice: Mapping[str, Any] = next(iter(body.get("choices") or ()), {})
    entries = choice.get("prompt_logprobs") or []
    if len(entries) != len(prompt):
        raise ValueError(f"the answer has {len(entries)} log-probabilities for a prompt of {len(prompt)} tokens")
    total, greedy = 0.0, True
    for token, entry in zip(prompt[start:], entries[start:], strict=True):
        values = {name: value["logprob"] for name, value in (entry or {}).items()}
        if str(token) not in values:
            raise ValueError(f"the answer lacks the log-probability of token {token}")
        total += values[str(token)]
        greedy = greedy and max(values, key=values.__getitem__) == str(token)
    return total, greedy


def _tokenizer(model: str, source: str | None, options: Mapping[str, Any]) -> tuple[Any, int | None]:
    """Load the tokenizer of the model that a server calls `model`.

    Also return the most tokens of prompt and answer together; None if nothing says.
    """
    from transformers import AutoConfig, AutoTokenizer

    file = settings.load().models
    entries = models.read(file) if file.exists() else {}
    adapted = (entry for entry in entries.values() if model in entry.get("adapters", {}))
    entry = entries.get(model) or next(adapted, {})
    folder = source or entry.get("source")
    if not folder:
        raise ConfigurationError(
            f"tokenizer: the models file here does not name {model}; add tokenizer=, the model's folder or hub id"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"tokenizer {folder} cannot be loaded: {reason}") from error
    if served := entry.get("engine_args", {}).get("max_model_len"):
        return tokenizer, served
    try:
        config = AutoConfig.from_pretrained(folder, **options)
    except (OSError, ValueError):
        return tokenizer, None  # a folder may hold a tokenizer alone
    text = getattr(config, "text_config", None) or config
    return tokenizer, next((length for key in _LENGTHS if (length := getattr(text, key, None))), None)
