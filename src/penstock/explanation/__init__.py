"""What a plan will cost and how random it will be, without training: one `Explanation` for every door.

`training` explains a linear model, `model_on_disk` and `factorization` models larger than memory, `group_training` a model
for every group.
"""

from penstock.explanation.clustering import Clustering
from penstock.explanation.explanation import Explanation, StrategyCost
from penstock.explanation.fit import QuickFit
from penstock.explanation.training import explain

__all__ = ["Clustering", "Explanation", "QuickFit", "StrategyCost", "explain"]
