"""What the operator runner may find, with the reason. In: an operator's name and a finding. Out: the reason, or "".

One more: a line in `KNOWN`; the pattern is searched for in the finding's detail.
"""

from __future__ import annotations

import re
from typing import Any

# Their values are whatever is in memory.
METADATA_ONLY = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})

# (operator's name, kind of finding, pattern in its detail, reason); all three are regular expressions.
KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (".*", "refused", r"\[dynamic-output-shape\]", "the shape of the result depends on values"),
    (
        ".*",
        "refused",
        "custom .non-ATen. operator whose output has alias annotations",
        "torch's functionalisation does not know this in-place operator",
    ),
    (
        "nn.functional.multilabel_margin_loss",
        "refused",
        "unknown-callable",
        "torch's rewrite of it for autograd counts targets behind the first -1",
    ),
    (
        "nn.functional.linear_cross_entropy.*|torch._scaled_mm_v2|nn.functional.triplet_margin_with_distance_loss",
        "refused",
        r"an object of type (LinearCrossEntropyOptions|_ScalingType|PairwiseDistance)",
        "an argument is an object that a graph cannot hold",
    ),
    ("jiterator_.*", "refused", "skipped-call", "the operator is made from C++ text while the program runs"),
    (
        "torch.ops.aten._(flash|efficient)_attention_forward",
        "wrong",
        "result [2-4]",
        "without dropout the seed's memory is not written to",
    ),
    ("trace", "refused", "operation-raises", "torch has no kernel for that dtype on a GPU"),
    (
        "einsum",
        "wrong",
        r"\(1, 2, 4\), \(4, 4, 1\)",
        "torch's fake implementation promises another stride for a dimension of size 1",
    ),
    (
        "diff",
        "wrong",
        r"\(1,\), \(1,\).*\(1,\), \(2,\)",
        "the strides of a dimension of size 1, which a copy does not keep",
    ),
    ("narrow_copy", "wrong", "_every_second", "eager writes to an out= that is not contiguous as if it were"),
    (
        "nn.functional.linear|index_reduce.*|cholesky",
        "wrong",
        r"^_\w+ \((capture|call)\): warns",
        "the parts that torch makes an operation with out= of warn, and compiled graphs have others",
    ),
    (
        "gather",
        "refused",
        "Expected dtype int32/int64 for index",
        "an index without elements is no integer, which torch's fake implementation refuses",
    ),
    ("resize_|resize_as_", "refused", "resize_", "the size of an input's memory changes"),
    ("to_sparse", "refused", r"SparseCPU|with torch\.sparse_", "sparse layout"),
    (".*", "refused", "its data is not allocated yet", "the operator reads values to decide what to do"),
    (".*", "refused", r"\[data-dependent\]", "the operator reads values to decide what to do"),
)


def reason_for(name: str, finding: Any) -> str:
    """Why this finding is none to mend."""
    for operator, kind, pattern, reason in KNOWN:
        if re.fullmatch(operator, name) and re.fullmatch(kind, finding.kind) and re.search(pattern, finding.detail):
            return reason
    return ""
