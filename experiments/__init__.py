"""Every table and figure of the paper, and experiments beyond it (`BEYOND` in harness/sweep.py,
docs/compare.md): a sweep in conf/experiment/<name>.yaml, a page of Python here, and `make <name>`.

    make table1                          run the sweep, then write outputs/report/table1.*; trials are reused
    make table1 SCALE=paper              the same at the paper's scale
    make plan-table1 SCALE=paper         the trials, what is reused, and the estimated cost, without running
    make reports                         all of the paper's
    python -m experiments run|plan|render <name>|all [scale=paper] [key=value ...]    what those targets call

To add one, called `loss-reduction` on the command line and loss_reduction in files:

1. conf/experiment/loss_reduction.yaml, which starts with its description in `make help`, its command, its
   cost at paper scale and the values to expect. `experiment.scales` defines each scale,
   `hydra.sweeper.params` is the sweep. Every trial is one run of run.py and shares artifacts with all others,
   so use the settings of table1's trials where possible: they are computed only once. `stages: [select]`
   stops early; `analysis.name` adds a measurement that needs the model, an artifact like any other (stage
   analyse).
2. experiments/loss_reduction.py with `render(sweep: Sweep) -> Report`. It reads finished artifacts and draws:
   no model code. `sweep.trials` are the trials, `sweep.folder(trial, SELECTION)` is the folder of a trial's
   finished artifact of a kind, or None, and `sweep.metrics(trial)` has its accuracies. Show missing results
   as missing; `measured=False` means that there are none yet. `published("table1")` has the paper's numbers,
   experiments/paper/table1.csv. See cost.py for a table with a figure and ablation_score.py for accuracies.

Without a place among the paper's tables and figures (ORDER in harness/sweep.py), it comes last.

An experiment whose trials depend on each other's results, or that are not a product of values, also has
`conduct(sweep)`, which runs them and returns errors, and `describe(sweep)`, its plan: see compare.py and
regime.py.

The harness does the rest: files, captions, index.md, W&B, plans, failures.
"""
