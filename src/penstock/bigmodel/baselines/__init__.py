"""The ways of holding a large model that ours is measured against: a key-value engine, a mapped file, plain memory.

They share all but the store. `KeyValueModel` is the paper's KV (section 3: Algorithm 2 with HogBatch), and its KV-VP
where it is given Algorithm 3's partitions; `MiniBatchModel` is the same learning on a plain array. `MemoryModel` and
`MemmapModel` run the ordinary kernel over indices as they come. All are for comparison: none can be resumed.
"""

from penstock.bigmodel.baselines.arrays import Baseline, MemmapModel, MemoryModel
from penstock.bigmodel.baselines.chunked import MiniBatchModel
from penstock.bigmodel.baselines.key_value import KeyValueModel

__all__ = ["Baseline", "KeyValueModel", "MemmapModel", "MemoryModel", "MiniBatchModel"]
