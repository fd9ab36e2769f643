"""The typed schema of conf/ and its checks. A typo, a wrong type or an impossible value is reported before
anything runs.

Hydra merges conf/ into these dataclasses (registered by schema.py, listed first in conf/config.yaml).
`load` converts the result to plain objects, whose `__post_init__` checks what types cannot express. Every
key is documented in the modules of this package; the YAML files give the sources of their values.
"""

from lark.config.analysis import Analysis
from lark.config.budget import Budget
from lark.config.compare import Compare
from lark.config.evaluation import GRADERS, Benchmark, Decoding, EngineSettings, Task
from lark.config.hardware import Experiment, Hardware, Planning, Tracking
from lark.config.method import Judge, Method, Scoring, Sketch, Validation
from lark.config.pool import ANSWER_FORMATS, HYGIENE, Mixed, Pool, Source
from lark.config.schema import STAGES, Config, from_dict, load, register
from lark.config.student import Student
from lark.config.teacher import Teacher
from lark.config.teaching import Questions, Teach
from lark.config.training import HeldOut, Lora, Training

__all__ = [
    "ANSWER_FORMATS",
    "GRADERS",
    "HYGIENE",
    "STAGES",
    "Analysis",
    "Benchmark",
    "Budget",
    "Compare",
    "Config",
    "Decoding",
    "EngineSettings",
    "Experiment",
    "Hardware",
    "HeldOut",
    "Judge",
    "Lora",
    "Method",
    "Mixed",
    "Planning",
    "Pool",
    "Questions",
    "Scoring",
    "Sketch",
    "Source",
    "Student",
    "Task",
    "Teach",
    "Teacher",
    "Tracking",
    "Training",
    "Validation",
    "from_dict",
    "load",
    "register",
]
