"""What clients say, and what they are told: the OpenAI API's completions, as JSON.

(OpenAI, *API reference*: Completions, Chat completions, Errors)
"""

import random
import time
from typing import Any, NamedTuple, TypeGuard

from course_pkg.gpt import BPETokenizer
from course_pkg.inference.requests import Sampling

KINDS = {404: "not_found_error", 429: "rate_limit_error", 500: "server_error"}
# What changes an answer and is not done here, and the values with which it changes nothing.
NOT_DONE = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "presence_penalty": (None, 0),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tools": (None, []),
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


class Ask(NamedTuple):
    """What a client wants.

    Attributes:
        prompts: the tokens of each prompt.
        sampling: how to continue each of them; sample k has the seed of this one plus k.
        samples: how many continuations of each prompt.
        stops: texts that end a continuation.
        streams: whether its text is wanted as it comes.
        wants_usage: whether a stream ends with the numbers of tokens.
    """

    prompts: list[list[int]]
    sampling: Sampling
    samples: int
    stops: list[str]
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


def _share(body: dict, name: str, lowest: float, highest: float) -> float:
    value = _value(body, name, (int, float), 1.0)
    if not lowest <= value <= highest:
        raise Refused(f"{name} must be from {lowest} to {highest}, got {value}", name)
    return float(value)


def _stops(body: dict) -> list[str]:
    given = _value(body, "stop", (str, list), [])
    stops = [given] if isinstance(given, str) else given
    if len(stops) > 4 or not all(isinstance(stop, str) and stop for stop in stops):
        raise Refused("stop must be a text that is not empty, or up to four", "stop")
    return stops


def _prompts(body: dict, tokenizer: BPETokenizer) -> list[list[int]]:
    given, V = body.get("prompt"), len(tokenizer.tokens)
    each = given if isinstance(given, list) and not _is_tokens(given, V) else [given]
    prompts = [tokenizer.encode(one.encode()) if isinstance(one, str) else one for one in each]
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


def _conversation(body: dict, tokenizer: BPETokenizer) -> list[list[int]]:
    """Write a conversation as one text: its contents, with an empty line after each.

    The models of the course know no roles: they have read documentation, not conversations.
    """
    texts = []
    for message in _value(body, "messages", list, []):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content)
        if not isinstance(content, str):
            raise Refused("each of the messages must have a text as its content", "messages")
        texts.append(content + "\n\n")
    if not texts:
        raise Refused("messages must hold at least one message", "messages")
    return [tokenizer.encode("".join(texts).encode())]


def parse(body: Any, is_chat: bool, model: str, tokenizer: BPETokenizer, context: int) -> Ask:
    """Understand a request.

    Args:
        body: what the client sent.
        is_chat: whether it has messages in place of a prompt.
        model: the name of the only model.
        tokenizer: its tokenizer.
        context: its longest text; a chat that sets no limit goes on until there.
    Raises:
        Refused: the request is not understood, or wants what is not done here.
    """
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    if body.get("model") != model:
        raise Refused(f"there is no model {body.get('model')!r}, but {model!r}", "model", 404)
    for name, harmless in NOT_DONE.items():
        if body.get(name) not in harmless:
            raise Refused(f"{name} is not supported", name)
    prompts = (_conversation if is_chat else _prompts)(body, tokenizer)
    rest = max(context - max(map(len, prompts)), 1)
    count = _whole(body, "max_tokens", rest if is_chat else 16, 1)
    count = _whole(body, "max_completion_tokens", count, 1)
    options = _value(body, "stream_options", dict, {})
    sampling = Sampling(
        max_tokens=count,
        temperature=_share(body, "temperature", 0, 2),
        top_p=_share(body, "top_p", 1e-6, 1),
        seed=_whole(body, "seed", random.randrange(2**31), 0),
    )
    return Ask(
        prompts, sampling, _whole(body, "n", 1, 1), _stops(body),
        _value(body, "stream", bool, False), bool(options.get("include_usage")),
    )  # fmt: skip


class Answer:
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
