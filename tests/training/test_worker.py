"""The training stage around its maths: what it exports, when it stops, what its settings mean."""

import json
import logging
import math
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from deepspeed.runtime.config import DeepSpeedConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
    get_scheduler,
)
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

from lark.config import Config, HeldOut, Lora
from lark.errors import LarkError
from lark.models.chat import ChatFormat
from lark.models.liger import apply_liger
from lark.models.load import generation_stops
from lark.models.shapes import shape_of
from lark.models.students import DEMO
from lark.pipeline.fingerprints import training_part
from lark.pipeline.machine_check import check_machine, check_steps
from lark.pipeline.operations.train import TRAIN
from lark.pipeline.plan import make_plan, wanted
from lark.store.store import Checksums
from lark.training import trainer as trainer_module
from lark.training.checkpoints import damage
from lark.training.checks import check_sequence_parallel
from lark.training.curves import flow_times, keep_steps, read_curve, snapshot_steps
from lark.training.encoded_set import read_examples, with_token_weights
from lark.training.lora import add_adapters, merged, transposed_layers
from lark.training.trainer import arguments, save_steps, trains_nothing
from lark.training.worker import prepare, train
from lark.training.zero import deepspeed_config, zero_stage
from lark.work.machine import Machine
from tests.conftest import composed
from tests.models.test_shapes import MIXTURES
from tests.training.tiny import (
    POISON,
    direct_loss,
    make_job,
    write_multimodal,
    write_student,
    write_training_set,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("worker")
    return write_student(folder / "student"), write_training_set(folder / "selection")


def test_the_export_is_a_plain_student_with_its_chat_template_and_both_stop_tokens(
    inputs: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts = train(make_job(*inputs, tmp_path, "student.dtype=bfloat16", "training.learning_rate=0.01"))
    assert counts["steps"] == 1 and counts["skipped_steps"] == 0
    assert (
        "Training will have no effect: 16 trajectories make a single step (training.global_batch=16)"
        in caplog.text
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(model) is LlamaForCausalLM and model.dtype == torch.bfloat16 and model.config.use_cache
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")  # tied
    chat = ChatFormat(tokenizer)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(DEMO).chat_template
    stops = generation_stops(str(inputs[0]), None, "student", len(tokenizer))
    assert set(model.generation_config.eos_token_id) == {*chat.stop_ids, *stops}
    assert not model.generation_config.do_sample
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["dtype"] == "bfloat16" and "sdpa_segments" not in json.dumps(saved)
    answer = model.generate(torch.tensor([chat.prompt("What is 1 + 1?")]), max_new_tokens=3)
    assert answer.shape[1] > 3
    assert not (tmp_path / "checkpoints").exists()
    (tmp_path / "ordinary").touch()
    written = {path.name: path.stat().st_mode for path in tmp_path.iterdir() if path.is_file()}
    assert "model.safetensors" in written and len(set(written.values())) == 1


def test_more_than_a_handful_of_steps_that_are_not_finite_stop_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    student = write_student(tmp_path / "student", tied=False)
    selection = write_training_set(tmp_path / "selection", poisoned=True)
    monkeypatch.setattr(trainer_module, "MOST_SKIPPED", 1)
    job = make_job(student, selection, tmp_path / "run", "training.epochs=3", "training.global_batch=8")
    with pytest.raises(
        LarkError, match=r"gradients of 2 steps were not finite.*q05/c \(their loss is not finite\)"
    ):
        train(job)
    assert "step" in caplog.text and "q05/c" in caplog.text
    bar = capsys.readouterr().err
    assert "loss –, " in bar and "loss 0.0000" not in bar
    (line,) = [line for line in read_curve(job.folder / "metrics.jsonl") if "skipped" in line]
    assert line["loss"] is None and line["grad_norm"] is None and line["skipped"] == ["q05/c"]
    assert all(
        math.isfinite(other["loss"])
        for other in read_curve(job.folder / "metrics.jsonl")
        if "skipped" not in other
    )


@pytest.mark.parametrize(("epochs", "stopped_at"), [(1, 1), (4, 3)])
def test_a_run_without_one_step_taken_is_not_finished(
    epochs: int, stopped_at: int, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """The adapters' gradients overflow, so the exported student would be the base model."""
    settings = [f"training.epochs={epochs}", "training.lora.rank=4", "training.lora.alpha=1e30"]
    no_step_taken = (
        rf"^Training stopped at step {stopped_at} of {epochs}: the gradients of {stopped_at} steps? were not"
        r" finite and no step "
        r"was taken.*q00/c.*lower training\.lora\.alpha"
    )
    with pytest.raises(LarkError, match=no_step_taken):
        train(make_job(*inputs, tmp_path, *settings))
    assert not (tmp_path / "model.safetensors").exists() and not (tmp_path / "training.json").exists()


@pytest.mark.parametrize("skipped", [2, 3])
def test_a_run_with_more_steps_skipped_than_taken_is_not_finished_and_keeps_its_checkpoints(
    skipped: int, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    settings = ["training.global_batch=4", "training.checkpoints=4"]
    steps = prepare(make_job(*inputs, tmp_path / "plan", *settings)).trainer.batches.steps
    poisoned = {k for step in steps[-skipped:] for k in step.trajectories}
    selection = write_training_set(
        tmp_path / "selection", weights=[POISON if k in poisoned else 1.0 for k in range(16)]
    )
    job = make_job(inputs[0], selection, tmp_path / "run", *settings)
    if skipped <= len(steps) / 2:
        assert train(job)["skipped_steps"] == skipped
        return
    with pytest.raises(
        LarkError, match=r"^Training stopped at step 4 of 4: the gradients of 3 steps were not finite"
    ):
        train(job)
    assert not (job.folder / "model.safetensors").exists()
    kept = sorted(path.name for path in job.folder.glob("checkpoints/checkpoint-*"))
    assert kept == ["checkpoint-2", "checkpoint-3"]
    assert all(damage(job.folder / "checkpoints" / name) is None for name in kept)


@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_student_whose_weights_are_no_longer_numbers_is_not_finished(
    step: int, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Found at the next step, at the next checkpoint or at the end, whichever comes first. Sound
    checkpoints are kept.
    """
    job = make_job(*inputs, tmp_path, "training.epochs=4", "training.checkpoints=2")
    run = prepare(job)
    run.trainer.add_callback(BreaksAt(step))
    with pytest.raises(
        LarkError,
        match=rf"after step {step} the student's weights are not finite .* training\.learning_rate=",
    ):
        run.trainer.train()
        run.exporter.export()
    assert not (tmp_path / "model.safetensors").exists()
    kept = [path.name for path in tmp_path.glob("checkpoints/checkpoint-*")]
    assert kept == ([] if step == 1 else ["checkpoint-2"])
    assert all(damage(tmp_path / "checkpoints" / name) is None for name in kept)


class BreaksAt(TrainerCallback):
    """After a step, one weight is not a number, as after an update with too large a rate."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == self.step:
            model.model.norm.weight.data[3] = torch.nan


def test_a_student_whose_loss_is_not_finite_is_not_finished(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its weights are finite, but too large: its logits are not."""
    run = prepare(make_job(*inputs, tmp_path, "training.epochs=2"))
    run.trainer.train()
    run.trainer.require_usable()
    run.trainer.model.model.norm.weight.data.fill_(3e38)
    run.trainer.skipped = {2: ["q00/c"]}
    with pytest.raises(
        LarkError, match=r"after step 1 the student's loss is not finite .* training\.learning_rate="
    ):
        run.trainer.require_usable()


def test_weights_that_do_not_fit_their_precision_are_not_exported(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = prepare(make_job(*inputs, tmp_path, "student.dtype=float16"))
    run.trainer.model.model.norm.weight.data[0] = 1e6
    with pytest.raises(LarkError, match=r"weights are not finite .*model\.norm\.weight"):
        run.exporter.export()


def test_where_each_loss_is_finite_the_whole_batch_is_named(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    run = prepare(make_job(*inputs, tmp_path, "training.epochs=2"))
    run.trainer._batch = run.trainer.batches[0]
    for names in run.trainer._batch.micro_keys:
        run.trainer._recorder.add(torch.ones(len(names)), torch.ones(len(names)))
    run.trainer._skip_step(1)
    assert len(run.trainer.skipped[1]) == 16


def test_a_response_that_is_cut_away_is_named_before_training(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "very " * 300}, {"role": "assistant", "content": "2"}]
    row = {"question_id": "q00", "candidate_id": "c", "weight": 1.0, "messages": messages}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(
        LarkError, match=r"the response of q00/c is cut off completely at student\.max_length=200"
    ):
        read_examples(tmp_path / "train.jsonl", ChatFormat(AutoTokenizer.from_pretrained(DEMO)), 200)


def test_weights_of_tokens_are_those_of_the_file_and_must_fit_the_students_tokens(tmp_path: Path) -> None:
    write_training_set(tmp_path)
    chat, path, file = (
        ChatFormat(AutoTokenizer.from_pretrained(DEMO)),
        tmp_path / "train.jsonl",
        tmp_path / "tokens.jsonl",
    )
    examples = read_examples(path, chat, 200)
    length = examples[3].encoded.n_response

    def write(count: int, question: str = "q03") -> Path:
        row = {"question_id": question, "candidate_id": "c", "token_weights": [0.5] * count}
        file.write_text(json.dumps(row) + "\n")
        return file

    found = with_token_weights(examples, write(length))
    assert found[3].token_weights == (0.5,) * length and {e.token_weights for e in found[:3] + found[4:]} == {
        None
    }
    with pytest.raises(
        LarkError, match=rf"token_weights of q03/c has 2 numbers, but its response has {length} tokens"
    ):
        with_token_weights(examples, write(2))
    with pytest.raises(LarkError, match=r"none of its 1 trajectories is in the selection, such as q00/c"):
        with_token_weights(examples, write(2, "elsewhere"))
    cut = read_examples(path, chat, len(examples[3].encoded.ids) - 1)  # one token of this response is cut off
    assert with_token_weights(cut, write(length))[3].token_weights == (0.5,) * (length - 1)


def write_ids_that_join_alike(folder: Path) -> Path:
    """A training set in which both trajectories are called a/b/c in messages."""
    write_training_set(folder, count=2)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for row, (question, candidate) in zip(rows, [("a/b", "c"), ("a", "b/c")], strict=True):
        row |= {"question_id": question, "candidate_id": candidate}
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_weights_of_tokens_reach_only_the_trajectory_with_both_ids(tmp_path: Path) -> None:
    path, file = write_ids_that_join_alike(tmp_path) / "train.jsonl", tmp_path / "tokens.jsonl"
    examples = {e.key: e for e in read_examples(path, ChatFormat(AutoTokenizer.from_pretrained(DEMO)), 200)}
    weights = [0.5] * examples["a/b", "c"].encoded.n_response
    file.write_text(json.dumps({"question_id": "a/b", "candidate_id": "c", "token_weights": weights}) + "\n")
    weighted = with_token_weights(list(examples.values()), file)
    assert {e.key: e.token_weights for e in weighted} == {("a/b", "c"): tuple(weights), ("a", "b/c"): None}


@pytest.mark.parametrize(
    ("order", "method", "best"),
    [
        ("easy_first", "grape", 1),
        ("hard_first", "grape", 1),
        ("by_score", "grape", 1),
        ("by_score", "rsr", -1),
    ],
)
def test_each_epoch_is_in_the_order_that_was_asked_for(
    order: str, method: str, best: int, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    student, selection = inputs
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    examples = read_examples(selection / "train.jsonl", chat, 200)
    tokens = {example.name: example.encoded.n_response for example in examples}
    scores = {name: (7 * place) % 17 for place, name in enumerate(tokens)}
    shutil.copy(selection / "train.jsonl", tmp_path)
    ids = [{"question_id": q, "candidate_id": c} for q, c in (example.key for example in examples)]
    table = pd.DataFrame(ids).assign(score=[float(score) for score in scores.values()])
    table.to_parquet(tmp_path / "selection.parquet")
    recipe = [
        f"method.name={method}",
        f"training.order={order}",
        "training.epochs=2",
        "training.global_batch=4",
    ]
    job = make_job(student, tmp_path, tmp_path / "run", *recipe)
    batches = prepare(job).trainer.batches
    steps = [[example.name for example in batches[k].examples] for k in range(len(batches))]
    values = {"easy_first": tokens, "hard_first": {name: -n for name, n in tokens.items()}}
    values["by_score"] = {name: -best * score for name, score in scores.items()}
    half = len(steps) // 2
    for epoch in (steps[:half], steps[half:]):
        names = list(chain.from_iterable(epoch))
        assert sorted(names) == sorted(tokens)
        placed = [values[order][name] for name in names]
        assert placed == sorted(placed)
    assert training_part(job.config.training, Checksums(tmp_path))["order"] == order


def test_each_held_out_trajectory_has_its_loss_if_their_ids_join_alike(
    inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    selection = write_ids_that_join_alike(tmp_path / "selection")
    settings = ["training.held_out.path=selection", "training.held_out.every=1", "training.warmup=0"]
    job = make_job(inputs[0], selection, tmp_path / "run", *settings)
    train(job)
    last = read_curve(job.folder / "metrics.jsonl")[-1]
    assert last["held_out_loss"] == pytest.approx(direct_loss(job.folder, selection), rel=1e-5)
    losses = [json.loads(line) for line in (job.folder / "held_out.jsonl").read_text().splitlines()]
    measured = {(row["question_id"], row["candidate_id"]): row["loss"] for row in losses}
    rows = [json.loads(line) for line in (selection / "train.jsonl").read_text().splitlines()]
    weighted = [row["weight"] * measured[row["question_id"], row["candidate_id"]] for row in rows]
    assert sum(weighted) / 2 == pytest.approx(last["held_out_loss"]) and len(set(measured.values())) == 2


def test_the_trainer_gets_the_papers_recipe(tmp_path: Path) -> None:
    config = composed("student=qwen7b", "hardware=cpu", "hardware.zero=2")
    args = arguments(config, tmp_path, 1172, "cpu", zero=0)
    assert (args.learning_rate, args.lr_scheduler_type, args.get_warmup_steps(1000)) == (1e-5, "cosine", 50)
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay) == (0.9, 0.999, 1e-8, 0.0)
    assert (args.max_grad_norm, args.bf16, args.seed, args.optim) == (1.0, True, 42, "adamw_torch_fused")
    assert args.gradient_checkpointing and args.gradient_checkpointing_kwargs == {"use_reentrant": False}
    assert not args.save_only_model
    training = config.training
    assert (training.epochs, training.global_batch, training.packing, training.liger) == (5, 64, True, True)
    assert config.student.max_length == 32768
    verify = composed("student=qwen7b", "training=verify").training
    assert (verify.learning_rate, verify.questions) == (5e-6, 500)
    different = {key for key, value in vars(verify).items() if value != vars(training)[key]}
    assert different == {"name", "learning_rate", "questions"}


@settings(deadline=None)
@given(st.floats(0, 0.99), st.integers(1, 12), st.sampled_from(["cosine", "linear", "constant_with_warmup"]))
def test_only_a_single_step_with_warm_up_trains_nothing(warmup: float, steps: int, schedule: str) -> None:
    """Against the rates that the Trainer's own schedule gives."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    told = TrainingArguments(warmup_steps=warmup, use_cpu=True).get_warmup_steps(steps)
    scheduler = get_scheduler(schedule, optimizer, num_warmup_steps=told, num_training_steps=steps)
    rates = []
    for _ in range(steps):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert trains_nothing(warmup, steps) == (max(rates) == 0.0)


@given(st.integers(1, 300), st.integers(1, 40))
def test_there_are_never_more_checkpoints_than_asked_for(steps: int, checkpoints: int) -> None:
    """The Trainer writes one every `save_steps`, and one at the end."""
    every = save_steps(steps, checkpoints)
    assert len({*range(every, steps + 1, every), steps}) <= checkpoints


@pytest.mark.parametrize("student", ["qwen7b", "qwen1.5b", "llama3b"])
@pytest.mark.parametrize(("zero", "device"), [(2, "cpu"), (2, "cuda"), (3, "cuda")])
def test_deepspeed_accepts_and_reads_the_papers_settings(
    student: str, zero: int, device: str, tmp_path: Path
) -> None:
    config = composed(f"student={student}", "hardware=cpu", "hardware.zero=2")
    told = HfTrainerDeepSpeedConfig(deepspeed_config(config, zero, device))
    told.trainer_config_process(arguments(config, tmp_path, 100, "cpu", zero=0))
    read = DeepSpeedConfig(told.config)
    sharding = read.zero_config
    assert (sharding.stage, sharding.reduce_bucket_size, sharding.allgather_bucket_size) == (zero, 5e8, 5e8)
    assert (read.communication_data_type, read.grad_accum_dtype) == (torch.float32, "fp32")
    assert (read.gradient_clipping, read.bfloat16_config.enabled) == (1.0, True)
    assert sharding.gather_16bit_weights_on_model_save == (zero == 3)
    assert (
        zero == 3 or not sharding.overlap_comm
    )  # the large gradients of ZeRO-2 would be freed while they are read


def test_one_process_has_nothing_to_shard() -> None:
    config = composed("student=qwen7b", "hardware=cpu", "hardware.zero=2")
    assert (zero_stage(config, "cpu", 1), zero_stage(config, "cpu", 2)) == (0, 2)


def check(config: Config, folder: Path) -> Machine:
    """The checks before anything of a run starts."""
    machine = check_machine(config)
    check_steps(config, machine, wanted(make_plan(config, Checksums(folder)), config.stages))
    return machine


TWO = ["hardware.processes=2", "hardware.sequence_parallel=2"]
THREE = ["hardware.processes=3", "hardware.sequence_parallel=3"]


@pytest.mark.parametrize(
    ("overrides", "missing", "said"),
    [
        (["hardware.zero=2", "hardware.processes=2"], "deepspeed", "DeepSpeed is not installed"),
        (["training.lora.rank=8"], "peft", "PEFT is not installed"),
        (["hardware.processes=3"], None, "cannot be divided among 3 processes"),
        (["hardware.sequence_parallel=2"], None, r"the number of processes \(1\) is not a multiple of it"),
        (
            [*THREE, "training.global_batch=15"],
            None,
            "heads cannot be divided among 3 processes; choose a divisor of ",
        ),
        ([*TWO, "student.attention=eager"], None, "does not support student.attention=eager: use sdpa"),
        (TWO, "deepspeed", "hardware.sequence_parallel=2 needs DeepSpeed, which is not installed"),
        (
            ["hardware.processes=2", "hardware.zero=0", "hardware.offload=optimizer"],
            None,
            "needs ZeRO: set hardware.zero=3",
        ),
        (["hardware.offload=everything"], None, "hardware.offload=everything: choose one of none, optimizer"),
    ],
)
def test_what_cannot_train_is_refused_before_anything_loads(
    overrides: list[str], missing: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.util import find_spec

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(LarkError, match=said):
        check(composed("hardware=cpu", *overrides), tmp_path)
    check(composed("hardware=cpu", "hardware.zero=2"), tmp_path)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("q_proj,lm_head", "lm_head names the head"),
        (
            "q_proj,no_such_layer",
            "no_such_layer: the student has no such layer; choose from down_proj, gate_proj, k_proj",
        ),
        ("embed_tokens", "embed_tokens is not a linear layer: choose from down_proj"),
        ("self_attn", "self_attn is not a linear layer"),
        ("all-linear,q_proj", "all-linear: the student has no such layer"),
    ],
)
def test_lora_must_leave_the_head_alone_and_name_linear_layers(targets: str, said: str) -> None:
    lora = composed("training.lora.rank=4", f"training.lora.targets=[{targets}]").training.lora
    with pytest.raises(LarkError, match=said):
        add_adapters(small_llama(), lora)


def test_a_student_that_needs_eager_attention_does_not_share_its_sequences(tmp_path: Path) -> None:
    """With attention=auto, too, which the refusal of an attention by its name does not see."""
    (tmp_path / "config.json").write_text(json.dumps(MIXTURES["gpt-oss-20b"][0]))
    student = composed("student=own", f"student.path={tmp_path}").student
    shape = shape_of(student)
    config = replace(composed("hardware=cpu", *TWO), student=student)
    with pytest.raises(LarkError, match=r"does not support eager attention, which .* needs: set it to 1"):
        check_sequence_parallel(config, Machine("cpu", 2, 1, 1), shape)


@pytest.mark.parametrize("targets", ["all-linear", "q_proj"])
def test_adapters_leave_a_vision_tower_alone(targets: str, tmp_path: Path) -> None:
    """Its layers have the same names as those that text reaches."""
    model = AutoModelForCausalLM.from_pretrained(write_multimodal(tmp_path))
    lora = composed("training.lora.rank=4", f"training.lora.targets=[{targets}]").training.lora
    adapters = [name for name, weight in add_adapters(model, lora).named_parameters() if weight.requires_grad]
    assert any("q_proj" in name for name in adapters)
    assert all("language_model" in name for name in adapters)


@pytest.mark.parametrize(
    "overrides", [["stages=[score]"], ["stages=[analyse]", "analysis.name=theory"], ["method=base"]]
)
def test_a_run_that_does_not_train_is_not_asked_for_a_batch(overrides: list[str], tmp_path: Path) -> None:
    assert (
        check(
            composed("hardware=cpu", "hardware.processes=3", "training.lora.rank=8", *overrides), tmp_path
        ).world
        == 3
    )
    for trains in (
        ["stages=[evaluate]"],
        ["stages=[analyse]", "analysis.name=kappa", "training.snapshots=2"],
    ):
        with pytest.raises(LarkError, match="cannot be divided among 3 processes"):
            check(composed("hardware=cpu", "hardware.processes=3", *trains), tmp_path)


def test_lora_adapts_the_given_layers() -> None:
    lora = composed("training.lora.rank=4", "training.lora.targets=[self_attn.q_proj,v_proj]").training.lora
    wrapped = add_adapters(small_llama(), lora)
    trained = {
        name.split(".")[-4] for name, parameter in wrapped.named_parameters() if parameter.requires_grad
    }
    assert trained == {"q_proj", "v_proj"}


def small_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config)


def test_merged_adapters_predict_what_the_adapted_student_does() -> None:
    lora = composed("training.lora.rank=4", "training.lora.alpha=16").training.lora
    model = small_llama()
    wrapped = add_adapters(model, lora)
    for name, parameter in wrapped.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    ids = torch.arange(10).unsqueeze(0)
    expected = model.eval()(input_ids=ids).logits
    plain = small_llama()
    untouched = plain(input_ids=ids).logits
    plain.load_state_dict(merged(wrapped.state_dict(), transposed_layers(model), lora))
    torch.testing.assert_close(plain(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert (expected - untouched).abs().max() > 0.1
    torch.testing.assert_close(
        model(input_ids=ids).logits, expected
    )  # merging left the student in training as it was


def test_a_checkpoint_without_the_curve_or_snapshots_that_are_asked_for_is_not_reused(tmp_path: Path) -> None:
    config, file = composed(), tmp_path / "held.jsonl"

    def fingerprint(
        lora: Lora | None = None, held_out: HeldOut | None = None, zero: int = 0, **training: Any
    ) -> str:
        nested = {"lora": lora or Lora(), "held_out": held_out or HeldOut()}
        changed = replace(
            config,
            training=replace(config.training, **nested, **training),
            hardware=replace(config.hardware, zero=zero, train_tokens=999),
        )
        (train,) = [step for step in make_plan(changed, Checksums(tmp_path)) if step.operation is TRAIN]
        return train.artifacts[0].fingerprint

    file.write_text("1\n")
    plain, before = fingerprint(), fingerprint(held_out=HeldOut(str(file)))
    file.write_text("2\n")
    different = [
        plain, before, fingerprint(held_out=HeldOut(str(file))), fingerprint(held_out=HeldOut(str(file), 3)),
        fingerprint(held_out=HeldOut("selection")), fingerprint(snapshots=4), fingerprint(lora=Lora(8)),
        fingerprint(lora=Lora(8, 1.0)), fingerprint(learning_rate=0.5), fingerprint(objective="dft"),
        fingerprint(objective="entropy"), fingerprint(token_weights=str(file)),
    ]  # fmt: skip
    assert len(set(different)) == len(different)
    same = [
        fingerprint(liger=True),
        fingerprint(packing=False),
        fingerprint(checkpoints=2),
        fingerprint(lora=Lora(0, 3.0)),
        fingerprint(held_out=HeldOut(None, 7)),
        fingerprint(zero=2),
        fingerprint(objective="nll", token_weights=None),
    ]
    assert set(same) == {plain}


def test_a_missing_held_out_file_is_refused() -> None:
    with pytest.raises(LarkError, match=r"training.held_out.path=nowhere.jsonl: there is no such file"):
        composed("training.held_out.path=nowhere.jsonl")


@pytest.mark.parametrize(
    ("count", "steps", "expected"),
    [
        (0, 9, []),
        (2, 9, [0, 9]),
        (4, 9, [0, 3, 6, 9]),
        (5, 2, [0, 1, 2]),
        (3, 1, [0, 1]),
        (2**62, 2, [0, 1, 2]),
    ],
)
def test_snapshots_are_evenly_spaced_from_the_first_to_the_last_step(
    count: int, steps: int, expected: list[int]
) -> None:
    assert snapshot_steps(count, steps) == expected


@pytest.mark.parametrize(
    ("early", "steps", "expected"),
    [
        (0, 40, [0, 20, 40]),
        (3, 40, [0, 2, 4, 20, 40]),
        (9, 40, [0, 1, 2, 3, 4, 20, 40]),
        (5, 8, [0, 1, 4, 8]),
    ],
)
def test_early_snapshots_are_dense_in_the_first_tenth_of_training(
    early: int, steps: int, expected: list[int]
) -> None:
    assert snapshot_steps(3, steps, early) == expected


def test_the_time_of_gradient_flow_is_the_sum_of_the_learning_rates_of_steps_that_were_taken(
    tmp_path: Path,
) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 0, "held_out_loss": 2.0},
        {"step": 1, "learning_rate": 0.1},
        {"step": 2, "learning_rate": 0.2, "skipped": ["q1/a"]},
        {"step": 3, "learning_rate": 0.4},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert flow_times(path, [0, 1, 2, 3]) == pytest.approx([0.0, 0.1, 0.1, 0.5])
    assert math.isnan(flow_times(path, [0, 4])[1]), "the curve ends before step 4"


def test_what_was_logged_after_the_checkpoint_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    keep_steps(path, 2)
    assert read_curve(path) == [{"step": 1}, {"step": 2}]


def test_liger_is_skipped_without_a_gpu_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert not apply_liger(small_llama(), "cpu")
    assert [record.message for record in caplog.records] == [
        "Liger kernels need a GPU: training with PyTorch's own"
    ]


def test_a_family_that_liger_does_not_know_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32))
    assert not apply_liger(model, "cuda:0")
    assert "Liger has no kernels for the family gpt2" in caplog.text


def test_the_user_turns_of_a_training_set_are_trained_on_as_they_are(tmp_path: Path) -> None:
    """Nothing is appended that the file does not contain, and nothing is recognised by its ending."""
    chat = ChatFormat(AutoTokenizer.from_pretrained(DEMO))
    messages = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    line = {"messages": messages, "weight": 1.0, "question_id": "q", "candidate_id": "c"}
    (tmp_path / "train.jsonl").write_text(json.dumps(line) + "\n")
    (example,) = read_examples(tmp_path / "train.jsonl", chat, 200)
    assert example.question_id == "q"
    prompt = chat.tokenizer.decode(list(example.encoded.ids[: example.encoded.prompt_length]))
    assert "1 + 1?" in prompt and "reason step by step" not in prompt
    assert "reason step by step" in chat.prompt_text("1 + 1?")
