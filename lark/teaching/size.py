"""How much of a teacher's work is left, for the planner: nothing is asked, and no rollout is read."""

from dataclasses import dataclass
from pathlib import Path

from lark.config import Config
from lark.config.teaching import Questions
from lark.errors import LarkError
from lark.pool.formats import find
from lark.pool.taught import PASS_RATES as RATES_FILE
from lark.store.manifest import Manifest, readable_manifest
from lark.store.siblings import description, siblings_of
from lark.store.store import Artifact
from lark.teaching import question_files
from lark.teaching.artifacts import PASS_RATES, ROLLOUTS, STANDING
from lark.teaching.asked import between, first_of
from lark.teaching.earlier import GROWS
from lark.teaching.heats import standing_of
from lark.teaching.question_files import QUESTIONS, AskedQuestion

ASSUMED_QUESTIONS = 5000
"""Assumed for a dataset that is not on this machine: the paper's."""
READ_BYTES = 2_000_000_000
"""Files of questions of up to this size are read for a plan."""
_read: dict[tuple[str, int], list[AskedQuestion]] = {}
"""Questions that were read, by their settings and the time of their newest file."""


@dataclass(frozen=True)
class Size:
    """The work of one teacher."""

    questions: int
    rollouts: int
    """Those that are not there yet."""
    tokens: float | None
    """Generated tokens per rollout, as far as this teacher was asked before."""
    is_assumed: bool = False
    """Whether the number of questions is a guess."""
    is_most: bool = False
    """Whether fewer may be asked: that depends on answers that are not there yet."""


def planned(config: Config) -> tuple[int, bool]:
    """The number of questions, and whether it is a guess."""
    asked = _from_source(config.questions)
    if asked is not None:
        return len(asked), False
    return config.questions.number or ASSUMED_QUESTIONS, config.questions.number is None


def size_of(artifact: Artifact, config: Config) -> Size:
    """The work of a planned artifact of rollouts."""
    outputs = config.outputs_path
    samples = config.teach.samples
    asked = asked_questions(artifact, config)
    heat_before = artifact.inputs.get(ROLLOUTS.name)
    is_most = "enough" in artifact.depends or _undecided(artifact, outputs)
    others = [(folder, _finished(folder)) for folder in siblings_of(artifact, outputs, GROWS)]
    made = [manifest.counts for _, manifest in others if manifest.counts.get("rollouts")]
    tokens = None
    if made:
        tokens = sum(count["tokens"] for count in made) / sum(count["rollouts"] for count in made)
    if asked is None:
        number, is_assumed = planned(config)
        number = min(number, _most(artifact) or number)
        carried = 0 if heat_before is None else min(number, _most(heat_before) or number)
        return Size(number, (number - carried) * samples, tokens, is_assumed, is_most)
    have = dict.fromkeys([question.key for question in asked], 0)
    if heat_before is not None:
        have |= dict.fromkeys(
            [question.key for question in asked_questions(heat_before, config) or ()], samples
        )
    for folder, manifest in others:
        _count(folder, manifest, outputs, have)
    rollouts = sum(max(0, samples - number) for number in have.values())
    return Size(len(asked), rollouts, tokens, is_most=is_most)


def _finished(folder: Path) -> Manifest:
    return readable_manifest(folder) or Manifest()


def _count(folder: Path, manifest: Manifest, outputs: Path, have: dict[str, int]) -> None:
    """Count the samples of another artifact's questions. One that ended early counts as none: what it has is
    known only when it is read.
    """
    asked = outputs / manifest.inputs.get(QUESTIONS.name, "-")
    samples = description(folder).get("depends", {}).get("samples", 0)
    counts = manifest.counts
    is_whole = (
        not (counts.get("not_asked") or counts.get("spared")) and PASS_RATES.name not in manifest.inputs
    )
    if not is_whole or not (asked / QUESTIONS.file).is_file():
        return
    for question in question_files.stored(asked):
        if question.key in have:
            have[question.key] = max(have[question.key], samples)


def asked_questions(artifact: Artifact, config: Config) -> list[AskedQuestion] | None:
    """The questions of a planned artifact of rollouts. None: they are not on this machine. All questions
    count until it is known which are not asked: by the student's pass rates, the heats so far, or enough
    rollouts of others.
    """
    asked = _drawn(artifact.inputs[QUESTIONS.name], config)
    asked = _between_rates(asked, artifact, config)
    standing = artifact.inputs.get(STANDING.name)
    if asked is None or standing is None or _undecided(artifact, config.outputs_path):
        return asked
    stopped = standing_of({STANDING.name: config.outputs_path / standing.folder}).stopped
    return asked[: stopped[artifact.name].questions] if artifact.name in stopped else asked


def _undecided(artifact: Artifact, outputs: Path) -> bool:
    """Whether it is not known yet which teachers stop before these rollouts."""
    standing = artifact.inputs.get(STANDING.name)
    return standing is not None and not _finished(outputs / standing.folder).finished


def _drawn(questions: Artifact, config: Config) -> list[AskedQuestion] | None:
    """The questions of an artifact that may be planned: all, or those of a heat."""
    folder = config.outputs_path / questions.folder
    if _finished(folder).finished:
        return list(question_files.stored(folder))
    source = questions.inputs.get(QUESTIONS.name)
    if source is None:
        return _from_source(config.questions)
    offered = _between_rates(_drawn(source, config), questions, config)
    return None if offered is None else first_of(offered, questions.depends["first"], config.teach.seed)


def _between_rates(
    questions: list[AskedQuestion] | None, artifact: Artifact, config: Config
) -> list[AskedQuestion] | None:
    """Those of the questions that the artifact's pass rates leave, as far as they are known."""
    rates = artifact.inputs.get(PASS_RATES.name)
    if questions is None or rates is None or not (config.outputs_path / rates.folder / RATES_FILE).is_file():
        return questions
    return list(between(questions, config.outputs_path / rates.folder, config.questions.pass_rate))


def _most(rollouts: Artifact) -> int | None:
    """The number of questions that the heat of these rollouts ends with. None: all."""
    most: int | None = rollouts.inputs[QUESTIONS.name].depends.get("first")
    return most


def _from_source(source: Questions) -> list[AskedQuestion] | None:
    """The questions of local files, read once per process; of the demo; or None."""
    try:
        files = find(source).files
        if not files and not source.is_generated:
            return None
        if sum(file.stat().st_size for file in files) > READ_BYTES:
            return None
        key = (repr(source), max((file.stat().st_mtime_ns for file in files), default=0))
        if key not in _read:
            _read[key] = question_files.sampled(question_files.read(source), source, ())
    except (LarkError, OSError):  # reported when they are read
        return None
    return _read[key]
