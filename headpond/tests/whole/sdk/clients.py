"""Unmodified client SDKs against a running Headpond. Reads the ready file; prints one line a check.

Usage: python clients.py READY_FILE
"""

import json
import sys
import time

import anthropic
import httpx
import openai
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

with open(sys.argv[1], encoding="utf-8") as file:
    ready = json.load(file)

URL = ready["url"]
KEY = ready["tenants"][0]["key"]
MODEL = ready["models"][0]
HELLO = [{"role": "user", "content": "Say hello to the river."}]

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
claude = anthropic.Anthropic(base_url=URL, api_key=KEY)

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def key_of(name):
    tenant = next((t for t in ready["tenants"] if t["name"] == name), None)
    assert tenant, f"the configuration of this test has a tenant named `{name}`"
    return tenant["key"]


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


@check
def openai_lists_models_and_one_model():
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def openai_chat_has_usage_and_a_request_id():
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.model
    assert answer.usage.completion_tokens >= 1
    assert answer._request_id


@check
def openai_stream_without_usage_shows_none():
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, stream=True)
    chunks = list(stream)
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason


@check
def openai_stream_with_usage_shows_it_once_at_the_end():
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert [chunk.usage is not None for chunk in chunks].count(True) == 1
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens >= 1


@check
def openai_completions_and_responses():
    answer = client.completions.create(model=MODEL, prompt="The river", max_tokens=5)
    assert answer.choices[0].text is not None and answer.usage.completion_tokens >= 1
    response = client.responses.create(model=MODEL, input="The river", max_output_tokens=5)
    assert response.usage.output_tokens >= 1


@check
def openai_embeddings_answer_or_refuse_in_shape():
    try:
        answer = client.embeddings.create(model=MODEL, input="The river")
        assert answer.data[0].embedding
    except openai.APIStatusError as error:
        assert error.status_code in (400, 404) and error.body["code"]


@check
def openai_errors_map_to_the_sdk_types():
    stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key="hp-000000000000-nobody", max_retries=0)
    error = raises(openai.AuthenticationError, lambda: stranger.models.list())
    assert error.code == "invalid_api_key"
    error = raises(
        openai.NotFoundError,
        lambda: client.chat.completions.create(model="no-such-model", messages=HELLO),
    )
    assert error.code == "model_not_found"
    error = raises(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=-1),
    )
    assert error.param == "max_tokens" and error.code == "invalid_value"
    # The first is refused by an engine, the second before any engine is asked.
    for words in (200_000, 4_000_000):
        long = [{"role": "user", "content": "word " * words}]
        error = raises(
            openai.BadRequestError,
            lambda: client.chat.completions.create(model=MODEL, messages=long),
        )
        assert error.code == "context_length_exceeded", error.code


@check
def openai_sdk_retries_a_rate_limit_and_honours_the_delay():
    patient = openai.OpenAI(base_url=f"{URL}/v1", api_key=key_of("limited"), max_retries=4)
    started = time.monotonic()
    for _ in range(4):
        patient.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)
    assert time.monotonic() - started >= 1.5, "the third and the fourth had to wait"
    hasty = openai.OpenAI(base_url=f"{URL}/v1", api_key=key_of("rationed"), max_retries=0)

    def burst():
        for _ in range(3):
            hasty.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=1)

    error = raises(openai.RateLimitError, burst)
    assert error.code == "rate_limit_exceeded"
    assert float(error.response.headers["retry-after"]) > 0
    assert "try again in" in error.message


@check
def openai_sdk_does_not_retry_an_exhausted_budget():
    sent = []
    counting = httpx.Client(event_hooks={"request": [sent.append]})
    eager = openai.OpenAI(base_url=f"{URL}/v1", api_key=key_of("broke"), max_retries=5, http_client=counting)
    error = raises(
        openai.RateLimitError,
        lambda: eager.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=64),
    )
    assert error.code == "insufficient_quota"
    assert error.response.headers["x-should-retry"] == "false"
    assert len(sent) == 1, "it was asked once"


@check
def openai_leaving_a_stream_early_is_fine():
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=200, stream=True)
    next(iter(stream))
    stream.close()


@check
def anthropic_message_and_stream():
    answer = claude.messages.create(model=MODEL, max_tokens=8, messages=HELLO)
    assert answer.content[0].text and answer.usage.output_tokens >= 1
    assert answer._request_id
    with claude.messages.stream(model=MODEL, max_tokens=8, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text and final.usage.output_tokens >= 1 and final.stop_reason


@check
def anthropic_errors_map_to_the_sdk_types():
    stranger = anthropic.Anthropic(base_url=URL, api_key="hp-000000000000-nobody", max_retries=0)
    error = raises(
        anthropic.AuthenticationError,
        lambda: stranger.messages.create(model=MODEL, max_tokens=8, messages=HELLO),
    )
    assert error.body["type"] == "error" and error.body["error"]["type"] == "authentication_error"
    error = raises(
        anthropic.NotFoundError,
        lambda: claude.messages.create(model="no-such-model", max_tokens=8, messages=HELLO),
    )
    assert error.body["error"]["type"] == "not_found_error"
    raises(
        anthropic.BadRequestError,
        lambda: claude.messages.create(model=MODEL, max_tokens=-3, messages=HELLO),
    )


@check
def langchain_invokes_and_streams():
    chat = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_tokens=8)
    assert chat.invoke("Say hello.").content
    assert "".join(chunk.content for chunk in chat.stream("Say hello."))
    other = ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, max_tokens=8)
    assert other.invoke("Say hello.").content
    assert list(other.stream("Say hello."))


for function in CHECKS:
    try:
        function()
    except Exception as error:
        print(f"FAILED {function.__name__}: {type(error).__name__}: {error}")
        raise
    print(f"ok {function.__name__}", flush=True)
