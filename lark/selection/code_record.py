"""Which code a selection was made with: no selection is reused after its method or weighting has changed.

`recorded_code.json` has the digest of every method's and weighting's code (lark/scoring/source_code.py) in
this version of the repository. Where the code is the recorded one, a selection does not depend on the digest:
selections that were made before digests existed stay valid, and so do all others when the code is rewritten
without changing a result and recorded again. Where the code differs from the record, as after an edit, or is
not in it, as a function of the user, the digest is a part of what the selection depends on.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from lark.scoring.methods import METHODS
from lark.scoring.selection_method import SelectionMethod
from lark.scoring.source_code import digest
from lark.selection.rules import WEIGHTINGS

RECORD = Path(__file__).with_name("recorded_code.json")
Code = Mapping[str, str]
"""Digests, by what they are of: `method` or `weighting`."""


@cache
def recorded() -> dict[str, Code]:
    """The digests of the repository's methods and weightings, by `method` or `weighting` and by name."""
    record: dict[str, Code] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def current() -> dict[str, Code]:
    """The same for the code as it is now."""
    methods = {name: _method_digest(method) for name, method in METHODS.items()}
    return {"method": methods, "weighting": {name: digest(rule) for name, rule in WEIGHTINGS.items()}}


def changed_code(method: SelectionMethod, weighting: str | None = None) -> Code:
    """The digests of the method, and of the weighting if one is given, without those that are as recorded."""
    made_with = {"method": (method.name, _method_digest(method))}
    if weighting is not None:
        made_with["weighting"] = (weighting, digest(WEIGHTINGS[weighting]))
    record = recorded()
    return {part: code for part, (name, code) in made_with.items() if record[part].get(name) != code}


def _method_digest(method: SelectionMethod) -> str:
    """The digest of a method's code and of its direction, which `method.reverse` does not change."""
    registered = METHODS.get(method.name, method)
    lower = "" if method.origin or registered.higher_is_better else "-lower"
    return digest(method.function) + lower
