"""Settings of teachers: models that answer questions, run here or behind an endpoint. A run has several."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from lark.config.checks import Section, plain_name, require, sampling_temperature
from lark.config.student import INSTRUCTION, RESERVED, Student
from lark.errors import LarkError
from lark.secrets import find

LOCAL_ENGINES = ("vllm", "sglang", "hf")
THINKING = ("reasoning_content", "tags", "none")
SELF = "self"
"""Name of the teacher that is the student itself (conf/teacher/self.yaml)."""
OURS = ("messages", "model", "n", "seed", "temperature", "top_p", "max_tokens", "logprobs", "stream")
"""Parameters of a request that have settings of their own, or that the engine sets."""


@dataclass
class Price:
    """The price of a million tokens, in any one currency."""

    input: float = 0.0
    """Tokens of prompts."""
    output: float = 0.0
    """Generated tokens, reasoning included."""


@dataclass
class Teacher:
    """A model that answers questions: run on this machine (`path`), or behind an endpoint (`endpoint`)."""

    path: str | None = None
    """Hub id or local folder of a model that is run here."""
    revision: str | None = None
    """Commit or tag of a hub id."""
    engine: str = "vllm"
    """The engine that runs it: vllm, sglang or hf. Its memory, batch and so on are those of `engine`."""
    tensor_parallel: int = 1
    """GPUs that share one copy of the model, with vllm or sglang."""
    context: int = 40960
    """Most tokens of prompt and answer together, for a model that is run here."""
    dtype: str = "bfloat16"
    """Precision of a model that is run here. Use float32 on CPU."""
    chat_template: str | None = None
    """Chat template of a model that is run here. None: its own. `llama3`, `chatml`: ours. Or a file."""
    template_options: dict[str, Any] = field(default_factory=dict)
    """Variables of the chat template, e.g. {enable_thinking: true}. To an endpoint they are sent as
    `chat_template_kwargs`, which vLLM and SGLang understand.
    """
    endpoint: str | None = None
    """Address of an OpenAI-compatible server, e.g. https://host/v1. Plain http only on this machine, unless
    `plain_http` is set.
    """
    model: str | None = None
    """The model's name at the endpoint."""
    answers_as: str | None = None
    """The model's name in the endpoint's answers, if that is another one (`model` is an alias)."""
    key: str | None = None
    """Name of the environment variable with the endpoint's key, never the key itself. None: it needs none."""
    plain_http: bool = False
    """Allow http to another machine, for a server in a cluster's own network. A key is never sent by it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further parameters of a request to the endpoint, e.g. {reasoning_effort: high}."""
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = -1
    """Sample from this many of the most likely tokens. -1: off, and not sent to an endpoint."""
    max_new_tokens: int = 32768
    """Most generated tokens of a sample, reasoning included. Less if the context is full before."""
    logprobs: bool = False
    """Whether the log-probability of every generated token is kept."""
    system: str | None = None
    """System prompt. None: the question's own, if it has one."""
    instruction: str | None = INSTRUCTION
    """Ends the user turn of every question. null: questions are asked as they are."""
    thinking: str = "tags"
    """How thinking comes back. reasoning_content: the endpoint returns it apart, under this name or as
    `reasoning`. tags: in the text, between `tags`. none: there is none, or it is part of the answer.
    """
    tags: list[str] = field(default_factory=lambda: ["<think>", "</think>"])
    """Start and end of the thinking, for thinking: tags. Some prompts end with the start, which is then not
    in the text.
    """
    price: Price = field(default_factory=Price)
    concurrency: int = 64
    """Requests to the endpoint that wait for their answers at the same time."""
    timeout: float = 1800.0
    """Seconds until a request to the endpoint is given up and sent again."""
    retries: int = 8
    """How many times a request that failed for a passing reason is sent again."""
    failures: float = 0.05
    """Share of the questions that may fail (content filters, prompts that are too long, …); more is an
    error.
    """

    def system_prompt(self, own: str | None) -> str | None:
        """The system prompt of a question whose own is `own`."""
        return own if self.system is None else self.system

    @property
    def is_local(self) -> bool:
        """Whether the model is run here, not behind an endpoint."""
        return self.endpoint is None

    @property
    def host(self) -> str:
        """The endpoint's host and port."""
        return urlsplit(self.endpoint or "").netloc

    def local_model(self, name: str) -> Student:
        """A model that is run here, in the form that engines load. `name`: the teacher's."""
        assert self.path is not None
        return TeacherModel(
            name,
            self.path,
            revision=self.revision,
            max_length=self.context,
            chat_template=self.chat_template,
            instruction=self.instruction,
            template_options=self.template_options,
            dtype=self.dtype,
        )


class TeacherModel(Student):
    """A teacher in the form that engines load. Its settings have another prefix on the command line."""

    @property
    def setting(self) -> str:  # type: ignore[override]  # of an object, not of the class: teachers have names
        return f"teacher.{self.name}"


def check_teachers(teachers: Mapping[str, Teacher]) -> None:
    """Refuse settings that no teacher can have."""
    for name, teacher in teachers.items():
        plain_name("teacher", name)
        section = Section(f"teacher.{name}", teacher)
        if teacher.endpoint is not None:
            _check_endpoint(section, teacher)
        elif teacher.path is not None:
            _check_local(section, teacher)
        else:
            raise LarkError(
                f"{section.name} has no model: set {section.name}.path (a hub id or folder), or"
                f" {section.name}.endpoint and {section.name}.model."
            )
        _check_sampling(section, teacher)
        _check_thinking(section, teacher)


def _check_sampling(section: Section, teacher: Teacher) -> None:
    sampling_temperature(f"{section.name}.temperature", teacher.temperature)
    section.require("top_p", 0 < teacher.top_p <= 1, "must be more than 0 and at most 1")
    is_count = teacher.top_k == -1 or teacher.top_k >= 1
    section.require("top_k", is_count, "must be at least 1, or -1 (off)")
    section.at_least(1, "max_new_tokens", "concurrency")
    section.require("timeout", 1 <= teacher.timeout <= 86400, "must be from 1 to 86400 seconds")
    section.require("retries", 0 <= teacher.retries <= 100, "must be from 0 to 100")
    section.require("failures", 0 <= teacher.failures <= 1, "must be a share from 0 to 1")
    Section(f"{section.name}.price", teacher.price).not_negative("input", "output")


def _check_thinking(section: Section, teacher: Teacher) -> None:
    section.one_of("thinking", THINKING)
    comes_apart = teacher.thinking == "reasoning_content"
    rule = "only an endpoint returns reasoning apart; use tags or none for a model that is run here"
    section.require("thinking", not (comes_apart and teacher.is_local), rule)
    is_pair = len(teacher.tags) == 2 and bool(teacher.tags[1])
    section.require("tags", is_pair, "give two: the start and the end of the thinking")


def _check_local(section: Section, teacher: Teacher) -> None:
    section.one_of("engine", LOCAL_ENGINES)
    section.at_least(1, "tensor_parallel")
    section.require("context", teacher.context >= 2, "must be at least 2 (prompt and answer)")
    rule = "only applies to an endpoint, and this teacher has a path; set one of them to null"
    section.require("model", teacher.model is None, rule)
    if teacher.key is not None:  # not shown: it may be a key
        raise LarkError(f"{section.name}.key {rule}.")
    for name, value in teacher.template_options.items():
        key = f"{section.name}.template_options.{name}"
        require(name not in RESERVED, key, value, "is not a variable of chat templates; LARK sets it")
    _ = teacher.local_model(section.name.partition(".")[2])


def _check_endpoint(section: Section, teacher: Teacher) -> None:
    both = f"{section.name}.endpoint is set too; for the endpoint, set {section.name}.path=null"
    section.require("path", teacher.path is None, both)
    _check_address(section.name, teacher)
    is_named = teacher.model is not None and teacher.model.strip() != ""
    section.require("model", is_named, "an endpoint needs the name of its model")
    if teacher.key is not None and not is_variable(teacher.key):
        raise LarkError(key_refused(f"{section.name}.key"))
    for name, value in teacher.extra.items():
        rule = "has a setting of its own, or is set by LARK; leave it out of extra"
        require(name not in OURS, f"{section.name}.extra.{name}", value, rule)


def is_variable(key: str) -> bool:
    """Whether a text is the name of an environment variable, not a key."""
    return re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", key) is not None and find(key) is None


def key_refused(setting: str) -> str:
    """Why a value is not a teacher's `key`. The value is not shown: it may be a key."""
    return (
        f"{setting} must be the name of an environment variable that holds the key, such as OPENAI_API_KEY,"
        " in capital letters, digits and _. A key that you typed is in your shell's history: remove it there."
    )


def _check_address(name: str, teacher: Teacher) -> None:
    parts = _split(teacher.endpoint or "")
    key = f"{name}.endpoint"
    is_plain = parts is not None and not (parts.username or parts.password or parts.query or parts.fragment)
    if parts is None or not is_plain:  # the address is not shown: it may contain a key
        raise LarkError(
            f"{key} must be the address of a server, such as https://host/v1, without a user, a password or a"
            f" query. Set {name}.key to the name of the environment variable with its key."
        )
    is_base = not re.search(r"/(chat/)?completions/?$", parts.path)
    require(is_base, key, teacher.endpoint, "leave out /chat/completions: LARK adds it")
    if parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return
    rule = (
        "http is not encrypted: use https, or an SSH tunnel to this machine (ssh -L 8000:host:8000);"
        f" in a cluster's own network, {name}.plain_http=true allows it"
    )
    require(teacher.plain_http, key, teacher.endpoint, rule)
    rule = f"a key is not sent without encryption: use https, or remove {name}.key"
    require(teacher.key is None, key, teacher.endpoint, rule)


def _split(address: str) -> SplitResult | None:
    """The parts of an address; None if it is not one of a server."""
    try:
        parts = urlsplit(address)
        _ = parts.port  # an error if it is not a number
    except ValueError:
        return None
    is_server = parts.scheme in ("http", "https") and bool(parts.hostname) and address.isprintable()
    return parts if is_server and " " not in address else None


def is_loopback(host: str) -> bool:
    """Whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
