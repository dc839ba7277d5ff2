"""Pictures of attention: who looks at whom, how budgets are spent, what masks allow, how views read memory.

Every function takes NumPy arrays, PyTorch tensors or nested lists, leaves them as they are and returns a
`Picture`. Heads, rows and columns are counted from 0, as in code. All texts are plain: a `$` is a dollar
sign, so write √ for a root. In an attention picture a blank cell means exactly 0, "<1" a little more.
"""

from helpers.heatmaps.attention import attention_map, head_grid, mask_map
from helpers.heatmaps.budget import budget_bars
from helpers.heatmaps.picture import Picture
from helpers.heatmaps.tensors import stride_map, tensor_map

__all__ = ["Picture", "attention_map", "budget_bars", "head_grid", "mask_map", "stride_map", "tensor_map"]
