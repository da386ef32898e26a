"""Linear models by stochastic gradient descent over any iterable of batches."""
