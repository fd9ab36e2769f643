"""Publish a selection (as a dataset) or a checkpoint (as a model) on a hub. Without --really, only shows
what would be uploaded.

Run as: python -m lark.publish outputs/selection/<name> --to owner/name
        python -m lark.publish 0123456789ab --to owner/name --license apache-2.0 --really
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from lark.config import GRADERS
from lark.config.checks import user_path
from lark.printing import log_to, text_table
from lark.publish import hub
from lark.publish.bundle import Bundle, bundle, find_artifact
from lark.publish.checks import check_licence, require_licence
from lark.work.entry import run_main

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, show what is published, and upload it if asked to."""
    options = _parser().parse_args(arguments)
    hub.check_name(options.to)
    check_licence(options.license)
    folder = find_artifact(options.artifact, user_path("--outputs", options.outputs))
    grader = None if options.results == "none" else options.results
    artifact = bundle(folder, options.to, options.license, grader)
    log.info(describe(artifact, options.to, options.public))
    if not options.really:
        log.info("Nothing was uploaded. Check the card, %s, then add --really.", artifact.card)
        return
    require_licence(artifact.card, artifact.missing)
    log.info("Published: %s", hub.push(artifact, options.to, options.public, options.hub))


def describe(artifact: Bundle, name: str, public: bool) -> str:
    """The files, their sizes, and what is missing."""
    sizes = {file.name: file.stat().st_size for file in artifact.files}
    sizes |= {result.name: len(result.content) for result in artifact.results.files}
    sizes["total"] = sum(sizes.values())
    access = "public" if public else "private, if it is new"
    lines = [
        f"{artifact.folder.name} as the {artifact.repo_type} {name} ({access})",
        text_table(["file", "bytes"], [[file, f"{size:,}"] for file, size in sizes.items()]),
        *artifact.results.left_out,
        *(f"Missing in {artifact.card.name}: {field}." for field in artifact.missing),
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m lark.publish", description="Publish a selection or a checkpoint on a hub."
    )
    parser.add_argument(
        "artifact", help="a folder below outputs/selection or outputs/checkpoint, or a fingerprint"
    )
    parser.add_argument(
        "--to", required=True, help="owner/name of the repository; it is created if it does not exist"
    )
    parser.add_argument("--license", help="identifier of the licence, written into the card")
    parser.add_argument(
        "--results",
        choices=(*GRADERS, "none"),
        default="verify",
        help="of a checkpoint: the grader of the evaluation results to publish, or none (default: verify)",
    )
    parser.add_argument("--public", action="store_true", help="create a public repository (default: private)")
    parser.add_argument("--hub", help="address of the hub (default: HF_ENDPOINT, or huggingface.co)")
    parser.add_argument(
        "--outputs", default="outputs", help="where to look for a fingerprint (default: outputs)"
    )
    parser.add_argument("--really", action="store_true", help="upload; otherwise nothing leaves this machine")
    return parser


if __name__ == "__main__":
    log_to(sys.stdout, logging.WARNING)
    logging.getLogger("lark").setLevel(logging.INFO)
    log.setLevel(logging.INFO)
    run_main(main)
