"""The list of all operations, in the order of a run."""

from lark.pipeline.operations import analyse, evaluate, pool, score, select, student, teach, train
from lark.work.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *student.OPERATIONS,
    *teach.OPERATIONS,
    *pool.OPERATIONS,
    *score.OPERATIONS,
    *select.OPERATIONS,
    *train.OPERATIONS,
    *evaluate.OPERATIONS,
    *analyse.OPERATIONS,
)
