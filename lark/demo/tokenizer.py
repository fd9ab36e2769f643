"""The demo's tokenizer: byte-level BPE with one token per digit, and a chat template with an optional
system turn.
"""

from collections.abc import Iterable
from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from lark.demo.corpus import SYSTEM, documents
from lark.demo.pool import trajectories
from lark.demo.problems import seeded
from lark.models.chat import INSTRUCTION, ChatFormat

ENTRIES = 768
CONTEXT = 512
PAD = "<|pad|>"
END = "<|end|>"
ROLE_TOKENS = ("<|system|>", "<|user|>", "<|assistant|>")

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

PRE_TOKENS = r" [-+*×=] |\d| ?\p{L}+|\n+| ?[^\s\p{L}\d]+|\s+"
"""An operator takes the spaces around it, so that a digit is the same token everywhere."""


def build(seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer, trained on samples of the pretraining corpus and of a pool. Depends on `seed` only."""
    bytes_only = ChatFormat(_train([]))  # enough to render chats
    corpus = documents(seeded("tokenizer", seed), bytes_only)
    sample = [document.text for document in islice(corpus, 6000)]
    sample += [str(row["response"]) for row in trajectories(60, seed)]
    # Every prompt has one of these, so their words should be tokens.
    sample += 20 * [INSTRUCTION, *SYSTEM.values()]
    return _train(sample)


def _train(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PRE_TOKENS), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENTRIES,
        special_tokens=[PAD, END, *ROLE_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLE_TOKENS),
        chat_template=TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        padding_side="right",
    )
