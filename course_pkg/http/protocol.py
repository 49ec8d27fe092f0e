"""What clients say, and what they are told: the OpenAI API's completions, as JSON.

(OpenAI, *API reference*: Completions, Chat completions, Errors)
"""

import json
import random
import time
from typing import Any, NamedTuple, TypeGuard

from course_pkg.engine.requests import SamplingParams
from course_pkg.gpt import BPETokenizer

KINDS = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error", 503: "server_error"}
DONE = {
    "model", "max_tokens", "max_completion_tokens", "n", "seed", "stop", "stream", "stream_options",
    "temperature", "top_k", "top_p", "min_p", "min_tokens",
}  # fmt: skip
# What changes no answer. No token of the course's models ends a text, so `ignore_eos` does not.
NO_MATTER = {
    "ignore_eos", "metadata", "parallel_tool_calls", "prompt_cache_key", "safety_identifier",
    "service_tier", "skip_special_tokens", "store", "user",
}  # fmt: skip
# What changes an answer and is not done here, and the values with which it changes nothing. Fields
# that stand nowhere in these three are not known, and refused as well.
NOT_DONE = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),  # 0 asks for those of the tokens themselves
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}


class Refused(Exception):
    """A request that is not served.

    Args:
        message: why, and what is expected.
        param: the field of the request that is meant.
        status: the HTTP status.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.status = status
        kind = KINDS.get(status, "invalid_request_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": None}}


class CompletionRequest(NamedTuple):
    """What a client wants.

    Attributes:
        prompts: the tokens of each prompt.
        sampling: how to continue each of them; sample k has the seed of this one plus k.
        n: how many continuations of each prompt.
        stops: texts that end a continuation.
        least: how many tokens a continuation has before a stop text may end it.
        streams: whether its text is wanted as it comes.
        wants_usage: whether a stream ends with the numbers of tokens.
    """

    prompts: list[list[int]]
    sampling: SamplingParams
    n: int
    stops: list[str]
    least: int
    streams: bool
    wants_usage: bool


def _value(body: dict, name: str, kinds: type | tuple, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
        raise Refused(f"{name} has the wrong type: {value!r:.60}", name)
    return value


def _whole(body: dict, name: str, default: int, lowest: int) -> int:
    value = _value(body, name, int, default)
    if value < lowest:
        raise Refused(f"{name} must be at least {lowest}, got {value}", name)
    return value


def _share(body: dict, name: str, lowest: float, highest: float, default: float = 1.0) -> float:
    value = _value(body, name, (int, float), default)
    if not lowest <= value <= highest:
        raise Refused(f"{name} must be from {lowest} to {highest}, got {value}", name)
    return float(value)


def _stops(body: dict) -> list[str]:
    given = _value(body, "stop", (str, list), [])
    stops = [given] if isinstance(given, str) else given
    if len(stops) > 4 or not all(isinstance(stop, str) and stop for stop in stops):
        raise Refused("stop must be a text that is not empty, or up to four", "stop")
    for stop in stops:
        _bytes(stop, "stop")
    return stops


def _bytes(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = "holds half of a character: a surrogate that stands alone"
        raise Refused(f"{name} {problem}", name) from error


class Limits(NamedTuple):
    """What a request can never exceed, so that what is larger is refused before it is built.

    Attributes:
        context: how many tokens prompt and continuation have together.
        queue: how many sequences may wait.
    """

    context: int
    queue: int

    def encode(self, text: str, name: str, tokenizer: BPETokenizer) -> list[int]:
        """Turn a text into tokens, if it can be short enough."""
        given, longest = _bytes(text, name), max(map(len, tokenizer.tokens))
        if len(given) > longest * self.context:
            exceed = f"{len(given)} bytes exceed the context, {self.context} tokens"
            raise Refused(f"{name}: {exceed}", name)
        tokens = tokenizer.encode(given)
        if len(tokens) >= self.context:
            raise Refused(f"{name}: {len(tokens)} tokens exceed the context, {self.context}", name)
        return tokens

    def demand_places(self, prompts: int, samples: int) -> None:
        """Demand that all samples may wait at once."""
        if prompts * samples > self.queue:
            raise Refused(
                f"{prompts * samples} sequences are more than may ever wait, {self.queue}",
                "n" if samples > 1 else "prompt",
            )


def _prompts(body: dict, tokenizer: BPETokenizer, limits: Limits, samples: int) -> list[list[int]]:
    given, V = body.get("prompt"), len(tokenizer.tokens)
    each = given if isinstance(given, list) and not _is_tokens(given, V) else [given]
    limits.demand_places(len(each), samples)
    prompts = [
        limits.encode(one, "prompt", tokenizer) if isinstance(one, str) else one for one in each
    ]
    tokens = [one for one in prompts if _is_tokens(one, V)]
    if not prompts or len(tokens) < len(prompts):
        raise Refused(f"prompt must be a text or tokens below {V}, or a list of these", "prompt")
    return tokens


def _is_tokens(given: object, V: int) -> TypeGuard[list[int]]:
    return (
        isinstance(given, list)
        and bool(given)
        and all(type(token) is int and 0 <= token < V for token in given)
    )


def _conversation(
    body: dict, tokenizer: BPETokenizer, limits: Limits, samples: int
) -> list[list[int]]:
    """Write a conversation as one text: its contents, with an empty line after each.

    The models of the course know no roles: they have read documentation, not conversations.
    """
    limits.demand_places(1, samples)
    texts = [_content(message) + "\n\n" for message in _value(body, "messages", list, [])]
    if not texts:
        raise Refused("messages must hold at least one message", "messages")
    return [limits.encode("".join(texts), "messages", tokenizer)]


def _content(message: Any) -> str:
    """Read the text of a message, which may come in parts."""
    message = message if isinstance(message, dict) else {}
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts: list[Any] = [
        part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None
        for part in parts
    ]
    if not all(isinstance(text, str) for text in texts):
        expected = "a text as its content, or a list of parts like {'type': 'text', 'text': 'hi'}"
        raise Refused(f"each of the messages must have {expected}", "messages")
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise Refused(f"messages with {name} are not supported", "messages")
    return "".join(texts)


def _demand_known(body: dict, is_chat: bool) -> None:
    """Demand that no field asks for what is not done. One that is null asks for nothing."""
    known = DONE | NO_MATTER | {"messages" if is_chat else "prompt"}
    for name, value in body.items():
        harmless = [(each, type(each) is bool) for each in NOT_DONE.get(name, ())]
        if value is None or name in known or (value, type(value) is bool) in harmless:
            continue
        problem = "is not supported" if name in NOT_DONE else "is no field that is known here"
        raise Refused(f"{name:.60} {problem}: leave it out", f"{name:.60}")


def parse(
    body: bytes, is_chat: bool, model: str, tokenizer: BPETokenizer, limits: Limits
) -> CompletionRequest:
    """Understand a request.

    Args:
        body: what the client sent: JSON.
        is_chat: whether it has messages in place of a prompt.
        model: the name of the only model.
        tokenizer: its tokenizer.
        limits: what no request can exceed; a chat that sets no limit goes on until the context's.
    Raises:
        Refused: the request is not understood, can never fit, or wants what is not done here.
    """
    asked = _object(body)
    if asked.get("model") != model:
        raise no_model(asked.get("model"), model)
    _demand_known(asked, is_chat)
    samples = _whole(asked, "n", 1, 1)
    prompts = (_conversation if is_chat else _prompts)(asked, tokenizer, limits, samples)
    rest = max(limits.context - max(map(len, prompts)), 1)
    count = _whole(asked, "max_tokens", rest if is_chat else 16, 1)
    count = _whole(asked, "max_completion_tokens", count, 1)
    least = _whole(asked, "min_tokens", 0, 0)
    if least > count:
        raise Refused(f"min_tokens is {least}, but no more than {count} are added", "min_tokens")
    options = _value(asked, "stream_options", dict, {})
    top_k = _whole(asked, "top_k", 0, -1)
    sampling = SamplingParams(
        max_tokens=count,
        temperature=_share(asked, "temperature", 0, 2),
        top_k=top_k if top_k > 0 else None,  # 0 and -1 keep all, as elsewhere
        top_p=_share(asked, "top_p", 1e-6, 1),
        min_p=_share(asked, "min_p", 0, 1, default=0.0),
        seed=_whole(asked, "seed", random.randrange(2**31), 0),
    )
    return CompletionRequest(
        prompts, sampling, samples, _stops(asked), least,
        _value(asked, "stream", bool, False), bool(options.get("include_usage")),
    )  # fmt: skip


def no_model(given: object, model: str) -> Refused:
    """Say that there is only one model."""
    return Refused(f"there is no model {given!r:.60}, but {model!r}", "model", 404)


def _object(body: bytes) -> dict:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is not JSON, or nested too deeply: {error}") from error
    if not isinstance(asked, dict):
        raise Refused("the body must be a JSON object")
    return asked


class CompletionResponse:
    """The JSON of one answer, whole or in pieces.

    Args:
        number: of the answer.
        model: the name of the model.
        is_chat: whether messages are answered.
        streams: whether the answer comes in pieces.
    """

    def __init__(self, number: int, model: str, is_chat: bool, streams: bool):
        self.is_chat, self.streams = is_chat, streams
        kind = "chat.completion" if is_chat else "text_completion"
        self.head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{number}",
            "object": kind + ".chunk" if is_chat and streams else kind,
            "created": int(time.time()),
            "model": model,
        }

    def choice(self, index: int, text: str, reason: str | None, is_first: bool = True) -> dict:
        """Tell what one continuation says, or says next, and why it has ended."""
        said: dict[str, Any] = {"text": text}
        if self.is_chat:
            message = {"role": "assistant"} if is_first else {}
            said = {"delta" if self.streams else "message": message | {"content": text}}
        return said | {"index": index, "logprobs": None, "finish_reason": reason}

    def body(self, choices: list[dict], usage: dict | None = None) -> dict:
        """Put choices together."""
        return self.head | {"choices": choices} | ({"usage": usage} if usage else {})


def usage(asked: int, added: int) -> dict[str, int]:
    """Tell how many tokens there were."""
    return {
        "prompt_tokens": asked,
        "completion_tokens": added,
        "total_tokens": asked + added,
    }
