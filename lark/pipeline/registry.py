"""The list of all operations, in the order of a run."""

from lark.pipeline.operations import analyse, evaluate, pool, score, select, student, train
from lark.work.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *student.OPERATIONS,
    *pool.OPERATIONS,
    *score.OPERATIONS,
    *select.OPERATIONS,
    *train.OPERATIONS,
    *evaluate.OPERATIONS,
    *analyse.OPERATIONS,
)
