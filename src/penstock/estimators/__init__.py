"""scikit-learn faces of the linear models: ``fit``, ``partial_fit``, ``predict``, ``score``.

They take what scikit-learn takes, and also a path, an address, a source or a table, whose label is then a
column's name: ``LogisticRegression(memory="512MB").fit("clicks.parquet", y="clicked")``. The data need not fit
in memory. scikit-learn is imported here and nowhere else.
"""

from penstock.estimators.linear import LinearRegression, LinearSVM, LogisticRegression, SoftmaxRegression

__all__ = ["LinearRegression", "LinearSVM", "LogisticRegression", "SoftmaxRegression"]
