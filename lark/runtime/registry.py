"""The list of all operations, in the order of a run. Each is declared next to the code that does the work."""

import lark.analysis.operations as analysis
import lark.evaluation.operations as evaluation
import lark.models.operations as models
import lark.pool.operations as pool
import lark.scoring.operations as scoring
import lark.selection.operations as selection
import lark.training.operations as training
from lark.runtime.operation import Operation

OPERATIONS: tuple[Operation, ...] = (
    *models.OPERATIONS,
    *pool.OPERATIONS,
    *scoring.OPERATIONS,
    *selection.OPERATIONS,
    *training.OPERATIONS,
    *evaluation.OPERATIONS,
    *analysis.OPERATIONS,
)
