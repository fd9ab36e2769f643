"""Rates that `make gpu-check` has measured on this machine (`planner.measured`), in place of assumed ones.

The file is the line of JSON that the check prints. Its rates are tokens per second of one device, for a
student whose shape it names; throughput.py turns them into fractions of the peak.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lark.config import Config
from lark.config.checks import user_path
from lark.errors import LarkError
from lark.planner.checks import not_measured, require_measured_here
from lark.reading.fields import Fields
from lark.reading.untrusted import read_object
from lark.work.machine import Machine, device_count, device_name, resolve

FORMAT = "lark gpu-check 1"
"""Value of `format` in the file."""
DOING = {"forward": "scoring", "training": "training", "decoding": "generation"}
"""The kinds of work that have a rate, in the words of the report."""


@dataclass(frozen=True)
class Rate:
    """The speed of forward passes, or of training, on one device."""

    tokens_per_second: float
    flops_per_token: float
    """As the planner counts them, for the lengths that were measured."""
    hidden: int
    """Width of the student that was measured."""
    threads: int

    @property
    def flops(self) -> float:
        """Operations per second."""
        return self.tokens_per_second * self.flops_per_token


@dataclass(frozen=True)
class DecodingRate:
    """The speed of one engine that generates."""

    engine: str
    tokens_per_second: float
    together: float
    """Sequences in a step, on average."""
    step_bytes: float
    """Bytes that a step reads: weights and cache."""
    layers: int
    eager: bool

    @property
    def step_seconds(self) -> float:
        return self.together / self.tokens_per_second


@dataclass(frozen=True)
class Measured:
    """The rates of a machine. Kinds of work that were not measured keep their assumed rates."""

    path: Path
    name: str
    """Name of the devices."""
    count: int
    core_tflops: float
    """Rate of a core in a matrix product, which the rates on CPU are relative to. 0 on GPUs."""
    rates: Mapping[str, Rate]
    decoding: DecodingRate | None

    @property
    def note(self) -> str:
        """The line of the plan that says where its rates come from."""
        speeds = {kind: rate.tokens_per_second for kind, rate in self.rates.items()}
        if self.decoding is not None:
            speeds["decoding"] = self.decoding.tokens_per_second
        listed = ", ".join(f"{DOING[kind]} {speed:,.0f} tokens/s" for kind, speed in speeds.items())
        machine = f"one of {self.count} x {self.name}"
        return f"measured by make gpu-check on {machine}: {listed or 'no rates'} ({self.path})"


def measured(config: Config) -> Measured | None:
    """The rates of `planner.measured`; None if it is not set. Refuses a file of another machine."""
    setting = config.planner.measured
    if setting is None:
        return None
    path = user_path("planner.measured", setting)
    try:
        values = read_object(path)
        rates = _read(path, values)
    except LarkError as error:
        raise not_measured(setting, str(error)) from error
    _check_machine(config, setting, rates, str(values["device"]))
    return rates


def _read(path: Path, values: Mapping[str, object]) -> Measured:
    fields = Fields(values, str(path))
    fields.one_of("format", (FORMAT,))
    fields.one_of("device", ("cuda", "cpu"))
    rates = {}
    decoding = None
    for rate in fields.objects("rates"):
        part = Fields(rate, f"{path}, rates")
        kind = part.one_of("kind", tuple(DOING))
        if kind == "decoding":
            decoding = _decoding(part)
        else:
            rates[kind] = _rate(part)
    core = fields.number("core_tflops")
    return Measured(path, fields.text("name"), fields.whole("count", 10**6), core, rates, decoding)


def _rate(fields: Fields) -> Rate:
    return Rate(
        _positive(fields, "tokens_per_second"),
        _positive(fields, "flops_per_token"),
        int(_positive(fields, "hidden")),
        int(_positive(fields, "threads")),
    )


def _decoding(fields: Fields) -> DecodingRate:
    return DecodingRate(
        fields.text("engine"),
        _positive(fields, "tokens_per_second"),
        _positive(fields, "together"),
        _positive(fields, "step_bytes"),
        int(_positive(fields, "layers")),
        bool(fields.truth("eager")),
    )


def _positive(fields: Fields, name: str) -> float:
    """A number that another one can be divided by."""
    value = fields.number(name)
    if not value:
        raise LarkError(f"{fields.where}: `{name}` must be more than 0")
    return value


def _check_machine(config: Config, setting: str, rates: Measured, device: str) -> None:
    """Refuse rates of other devices than those of the plan."""
    machine = resolve(config.hardware, here=False)
    count = _count(machine)
    name = rates.name if machine.elsewhere else device_name(machine.device)  # elsewhere, it is unknown
    planned = (machine.device, name, count)
    require_measured_here(setting, (device, rates.name, rates.count), planned)


def _count(machine: Machine) -> int:
    """Devices of the planned machine, or of each of its nodes."""
    return machine.processes if machine.device == "cuda" else device_count("cpu")
