"""Several shuffling strategies on the same data, under the same budget, each in a process of its own.

A fresh process makes the peak memory a strategy's own, and lets the others go on where one fails. What comes back
is plain data: ``penstock compare`` prints it, and `penstock.report` draws its page from `page_facts`.
"""

from penstock.compare.runs import DEFAULT_SHUFFLES, ORDERS_NOTE, compare, order_pictures, page_facts, page_run, score_of
from penstock.compare.training_request import TrainingRequest, run_figures

__all__ = [
    "DEFAULT_SHUFFLES",
    "ORDERS_NOTE",
    "TrainingRequest",
    "compare",
    "order_pictures",
    "page_facts",
    "page_run",
    "run_figures",
    "score_of",
]
