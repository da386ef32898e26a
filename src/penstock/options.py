"""The option table: every hyper-parameter and every option of reading and writing, declared once.

A *door* is a place where options are given: a command, an estimator, a SQL statement, the search of groups. The parameters of the
command line, the checks of `penstock.config.Config` and its relatives, SQL's options and the search space of groups are made from the
table; `benchmarks.reference` makes the tables of docs/reference.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from penstock.errors import UsageError
from penstock.messages import START_ANEW, Given

COLUMNS, GROUPS, LEARNING, MEMORY = "Columns", "Groups", "Learning", "Shuffling and memory"
STOPPING, ON_DISK, DATABASE, OUTPUT = "Testing and stopping", "Models on disk", "Database", "Output"
TREES = "Boosted trees"
ARGUMENT = "Arguments"
REQUIRED = ...
"""The default of an option that has to be given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option: what it is called, what it may be, and where it is found.

    Attributes
    ----------
    name : str
        Its name in Python and SQL; the command line makes a flag of it.
    kind : str
        whole, number, flag, word, choice, text, texts, paths, size, memory, column, columns, hash, class_weight or cache.
    help : str
        What it does. ``{l1}`` stands for another option, and `` `l2=1` `` for something to be written as it is.
    default : object
        Its value where it is not given, None where that depends on other things: ``default_text`` then says on which.
    least, below, most : float
        The range of a number; ``least`` itself is too little where ``above`` is set, and ``most`` itself is not too much.
    reason, fix : str
        The parts of the error about a value out of range.
    auto : bool
        Whether the word auto is a value: it leaves the choice to Penstock.
    panel, metavar, spelling, short : str
        The command line's: a part of the help page, what stands for the value, and the flag, if it is not the name.
    doors : tuple of str
        Where the option is found.
    aliases, warehouse : tuple of str
        Its other names in SQL: in all statements, and after ``OPTIONS`` alone.
    needs, refused : str, mapping
        An option that it is meaningless without; the models that do not take it, each with the reason.
    variants : mapping
        Fields that differ by door.

    Examples
    --------
    >>> TABLE["epochs"].check(5), TABLE["l2"].check("auto"), options_of("compare")["epochs"].default
    (5, None, 20)
    >>> TABLE["epochs"].check(1.5)
    Traceback (most recent call last):
    penstock.errors.UsageError: epochs=1.5 is not a number of epochs; choose 1 or more
    """

    name: str
    kind: str
    help: str
    default: Any = None
    default_text: str = ""
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf
    above: bool = False
    reason: str = "is out of range"
    fix: str = ""
    auto: bool = False
    panel: str = OUTPUT
    metavar: str = " "
    spelling: str = ""
    short: str = ""
    doors: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    warehouse: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    needs: str = ""
    refused: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def check(self, value: Any) -> Any:
        """Return a value as plain Python, with None for auto; raise `UsageError` for a number of the wrong type or out of range."""
        if type(value).__module__ == "numpy" and hasattr(value, "item"):  # as a search hands them on, which are no JSON
            value = value.item()
        if isinstance(value, str) and value == "auto" and (self.auto or self.kind != "word"):
            return None
        if value is None or self.kind not in ("whole", "number"):
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError("is not a number", option=self.name, value=value, fixes=["give it without quotes"])
        whole = self.kind == "number" or (math.isfinite(value) and value == int(value))
        if not (whole and math.isfinite(value) and self.least <= value < self.below and value <= self.most) or (
            self.above and value == self.least
        ):
            reason = self.reason if whole or self.fix else "is not a whole number"
            fix = self.fix or (self.range_text if self.kind == "whole" else "")
            raise UsageError(reason, option=self.name, value=value, fixes=[fix] if fix else ())
        return value

    @property
    def range_text(self) -> str:
        """What to do where a whole number is out of range; nothing where there is no range.

        Examples
        --------
        >>> TABLE["num_leaves"].range_text, TABLE["rounds"].range_text
        ('choose from 2 to 131072', 'choose 1 or more')
        """
        if math.isinf(self.least):
            return ""
        return (
            f"choose {self.least:g} or more"
            if math.isinf(self.most)
            else f"choose from {self.least:g} to {self.most:.0f}"
        )

    def at(self, door: str) -> Option:
        """Return the option as it is found at one door."""
        return replace(self, **self.variants[door]) if door in self.variants else self


def _option(name: str, kind: str, help: str, *, doors: str, **more: Any) -> Option:
    for aliases in ("aliases", "warehouse", "words"):
        more[aliases] = tuple(more.get(aliases, "").split())
    # What differs by door is written once for all doors of a key.
    variants = {door: fields for key, fields in more.pop("variants", {}).items() for door in key.split()}
    return Option(name=name, kind=kind, help=help, doors=tuple(doors.split()), variants=variants, **more)


_ROWS = "explain train convert compare groups-train groups-explain"
_READ = f"{_ROWS} evaluate predict"
_GROUPED = "query query-boosting query-torch"
_QUERIES = f"{_GROUPED} query-disk"
_FETCHED = f"{_QUERIES} query-factor"
_LEARN = f"explain train compare groups-train groups-explain {_QUERIES}"
_MODELS = "train compare estimator disk factor query"
_DISK = "train explain"
_SHARE = {"least": 0, "below": 1, "reason": "is not a share of the rows", "fix": "choose one from 0 to below 1"}
_PENALTY = {"least": 0, "reason": "must be zero or a positive number, such as 1e-4"}
_FRACTION = {"least": 0, "above": True, "most": 1, "reason": "is not a share above 0, at most 1"}
_COUNT = {"panel": TREES}
_WEIGHT = {"least": 0, "reason": "must be zero or a positive number", "panel": TREES}
_EPOCHS = {"least": 0, "reason": "is not a number of epochs"}
_OWN_COLUMNS = {"factor": "it learns from {user}, {item} and {rating}"}
_OPTIMIZERS = "Of sgd, how gradients become steps: sgd, adagrad, adam or ftrl."
_GROUP_EPOCHS = "Most passes over a group's rows; if not given 100, by which lbfgs mostly has converged, and 20 of sgd. Of lightgbm the trees, 100."
_GROUP_SHARE = (
    "The share of each group's rows that is held out to judge the chosen models by; as large a share of the others is to choose by. If not"
    " given, each group's model in the end learns from all of its rows. 0 trains on all rows and judges nothing."
)

# fmt: off
_OPTIONS = (
    _option("model_file", "text", "A model that `train` saved: a file, or a model's directory.", panel=ARGUMENT, metavar="MODEL", default=REQUIRED,
            doors="evaluate predict show"),
    _option("models", "text", "A folder of models that `groups train` made.", panel=ARGUMENT, metavar="MODELS", default=REQUIRED, doors="groups-report"),
    _option("data", "paths", "A file, folder, glob or address of rows, or several of one format.", panel=ARGUMENT, metavar="DATA", default=REQUIRED,
            doors="explain train compare groups-train groups-explain evaluate predict"),
    _option("source", "text", "Rows in any format; JSON lines, compressed text, Arrow streams; a Hugging Face folder, a folder of images,"
            " WebDataset tars, MDS shards.", panel=ARGUMENT, metavar="SRC", default=REQUIRED, doors="convert"),
    _option("target", "text", "The Arrow file to write.", panel=ARGUMENT, metavar="DST", default=REQUIRED, doors="convert"),
    _option("script", "text", "What to run; asked for at a prompt if left out.", panel=ARGUMENT, metavar="STATEMENTS", doors="sql"),

    _option("label", "column", "The column to learn. Converted and LibSVM files name their own.", panel=COLUMNS, metavar="COL",
            doors=f"{_ROWS} evaluate {_QUERIES} query-evaluate query-pack", refused={"factor": "what it learns is named by {rating}"}),
    _option("features", "columns", "The columns to learn from; all others if not given.", panel=COLUMNS, metavar="A,B,C",
            doors=f"{_ROWS} {_QUERIES} query-pack", refused=_OWN_COLUMNS),
    _option("exclude", "columns", "Columns to leave out.", panel=COLUMNS, metavar="A,B,C", doors=f"{_ROWS} {_QUERIES} query-pack", refused=_OWN_COLUMNS),
    _option("hash", "hash", "Hash a text column into so many features; `COL:2^18:words` word by word; `*` all text. May be repeated.",
            panel=COLUMNS, metavar="COL[:2^20]", doors=f"{_ROWS} {_QUERIES}", refused=_OWN_COLUMNS),
    _option("category", "columns", "Columns to take as categories, one feature for each level, whatever they hold.", panel=COLUMNS,
            metavar="A,B,C", doors=f"{_LEARN} convert", refused=_OWN_COLUMNS),
    _option("number", "columns", "Columns to take as numbers, also where they are stored as text.", panel=COLUMNS, metavar="A,B,C",
            doors=f"{_LEARN} convert", refused=_OWN_COLUMNS),
    _option("date", "columns", "Columns to take as dates: days, and month, weekday and hour as categories.", panel=COLUMNS, metavar="A,B,C",
            doors=f"{_LEARN} convert", refused=_OWN_COLUMNS),
    _option("missing", "choice", "Missing features: fill (with the mean), indicator (fill, and a feature that tells of them), drop (leave the row"
            " out), refuse (also rows without a label, which else are left out), or auto: indicator where over 1 % of a column are missing.",
            words="auto fill indicator drop refuse", default="auto", panel=COLUMNS, metavar="HOW", doors=f"{_LEARN} convert", refused=_OWN_COLUMNS),
    _option("null_values", "texts", "Values that stand for a missing one, as text or as a number, such as `?,-999`.", panel=COLUMNS,
            metavar="A,B,C", doors=f"{_LEARN} convert", refused=_OWN_COLUMNS),
    _option("weight", "column", "How much each row counts.", panel=COLUMNS, metavar="COL", doors=f"{_ROWS} {_QUERIES}", refused=_OWN_COLUMNS),
    _option("keep", "columns", "Columns to carry over as they are.", panel=COLUMNS, metavar="A,B,C", doors="convert predict disk", variants={
            "disk": {"kind": "whole", "default": 10_000, "least": 0, "reason": "is not a number of features", "fix": "choose 0 or more",
                     "help": "The most frequent features, which are stored by what they occur with."}}),
    _option("format", "text", "parquet, arrow, npy, csv or libsvm, where the name does not tell.", panel=COLUMNS, metavar="NAME", doors=_READ, variants={
            "convert": {"help": "parquet, arrow, npy, csv, libsvm, jsonl, hf, images, webdataset or mds, where the data do not tell."}}),
    _option("split", "text", "Which part, where the data come in several, such as train.", panel=COLUMNS, metavar="NAME", doors="convert"),
    _option("extensions", "columns", "Of tars: the columns to take, each with its type (int, string, binary) if you like.", panel=COLUMNS,
            metavar="A,B:TYPE", doors="convert"),
    _option("header", "flag", "Whether CSV text begins with the columns' names; found out if not given.", panel=COLUMNS, doors=_READ),
    _option("delimiter", "text", "What parts the fields of CSV text; found out if not given.", panel=COLUMNS, metavar="CHAR", doors=_READ),

    _option("by", "columns", "The columns to group by.", panel=GROUPS, metavar="A,B", default=REQUIRED, doors="groups-train groups-explain"),
    _option("grid", "text", "What to try for every group: a table `\\[grid]` or `\\[random]`.", panel=GROUPS, metavar="FILE.toml",
            doors="groups-train groups-explain"),
    _option("tries", "columns", "Values to try, of learning_rate, l1, l2, epochs …, or num_leaves … of lightgbm. May be repeated: every combination is"
            " tried.", panel=GROUPS, metavar="NAME=A,B,C", spelling="try", doors="groups-train groups-explain"),

    _option("model", "word", "logistic, svm, linear or softmax.", default="logistic", panel=LEARNING, metavar="NAME", doors="explain train compare"
            " groups-train groups-explain", variants={
            "train explain": {"help": "logistic, svm, linear or softmax; factor, of ratings, with {model_dir}."},
            "groups-train groups-explain": {"help": "logistic, svm, linear, softmax, or lightgbm (trees)."}}),
    _option("epochs", "whole", "Passes over the data, at most.", default_text="sgd 20, more of few rows; lbfgs and gd 100", panel=LEARNING, metavar="N",
            **_EPOCHS, fix="choose 1 or more", doors=f"{_MODELS} search groups-train groups-explain query-torch", aliases="max_epoch_num",
            warehouse="max_iterations", variants={
            "compare": {"default": 20, "help": "Passes over the data.", "default_text": ""}, "search": {"least": 1},
            "factor": {"default_text": "20"},
            "groups-train groups-explain": {"help": _GROUP_EPOCHS, "default_text": ""}}),
    _option("solver", "word", "auto, sgd, lbfgs, exact (of linear) or gd. Auto solves linear exactly where features are few, takes lbfgs for dense rows"
            " that fit in memory, and sgd for others and where an option of sgd is given.", default="auto", panel=LEARNING, metavar="NAME",
            doors="train estimator query groups-train groups-explain", variants={"groups-train groups-explain": {
            "default": None, "default_text": "auto", "help": "Of linear models: auto, exact (of linear), lbfgs, gd (plain gradient descent) or sgd. Auto solves linear exactly and takes lbfgs"
            " for the others, or sgd where an option of sgd is given."}}),
    _option("optimizer", "word", "Of sgd, how gradients become steps: sgd, adagrad, adam or ftrl (whose {l1} makes weights zero); with {model_dir} sgd"
            " or adagrad.", auto=True, default_text="sgd; ftrl for more than 2,000 sparse features", panel=LEARNING, metavar="NAME",
            doors="explain train compare estimator disk query groups-train groups-explain", refused={"factor": "it learns by sgd"}, variants={
            "disk": {"default": "sgd", "default_text": ""}, "compare": {"help": _OPTIMIZERS},
            "groups-train groups-explain": {"help": _OPTIMIZERS, "default": "sgd", "default_text": ""}}),
    _option("batch_size", "whole", "Rows to an update.", default=1, least=1, reason="must be a whole number from 1", fix="1 updates after every row",
            panel=LEARNING, metavar="N", doors="train compare estimator disk query query-torch", refused={"factor": "it makes an update after every rating"}),
    _option("learning_rate", "number", "The first step size, or auto: steps are sized by the rows, so that none is too large.", auto=True, least=0,
            above=True, reason="must be a positive number", panel=LEARNING, metavar="X", doors=f"{_MODELS} search boosting", warehouse="learn_rate",
            variants={"boosting": {"default": 0.1, "auto": False, "help": "What each tree counts."}}),
    _option("rate", "word", "How it falls: auto, exponential, inverse-scaling or constant.", default="auto", panel=LEARNING, metavar="NAME",
            doors=_MODELS, variants={"factor": {"default": "exponential"}}),
    _option("decay", "number", "Of exponential: the factor per epoch.", default=0.95, panel=LEARNING, metavar="X", doors=_MODELS),
    _option("power", "number", "Of inverse-scaling: the exponent.", default=0.25, panel=LEARNING, metavar="X", doors=_MODELS),
    _option("l1", "number", "Penalty on the weights' sizes.", default=0.0, **_PENALTY, panel=LEARNING, metavar="X",
            doors="train compare estimator disk query search", warehouse="l1_reg", refused={"factor": "its penalty is {l2}"}),
    _option("l2", "number", "Penalty on the weights' squares.", default_text="1 / rows (ftrl: 0.1 / rows), or 0 with {l1}", auto=True, **_PENALTY, panel=LEARNING,
            metavar="X", doors=f"{_MODELS} search", warehouse="l2_reg", variants={
            "factor": {"default": 0.02, "default_text": "", "reason": "must be zero or a positive number, such as 0.02"}}),
    _option("average", "flag", "Of sgd: take the mean of the weights over the epochs, and not the last ones.", default=True, panel=LEARNING,
            doors="train estimator query"),
    _option("class_weight", "class_weight", "How much rows count by their class: balanced, or a weight for each label: `yes=5,no=1`.", panel=LEARNING,
            metavar="WEIGHTS", doors="train estimator disk query groups-train", warehouse="class_weights",
            refused={"factor": "it predicts ratings, which are no classes"}),
    _option("intercept", "flag", "Learn an intercept.", default=True, panel=LEARNING, warehouse="fit_intercept",
            doors="train compare estimator disk query groups-train groups-explain", refused={"factor": "it has the mean rating instead of an intercept"}),
    _option("standardize", "flag", "Bring features to mean 0 and spread 1, sparse ones to spread 1 alone, by one pass more.", default=True,
            panel=LEARNING, doors="train compare estimator disk query groups-train groups-explain query-torch", refused=_OWN_COLUMNS, variants={
            "groups-train groups-explain": {"help": "Bring features to mean 0 and spread 1 within each group."}}),
    _option("warm_start", "flag", "Whether fit begins with the weights of the last fit.", default=False, panel=LEARNING, doors="estimator"),
    _option("init", "text", "A model of the database to go on from: its weights, and how it makes features of columns, which have to be the same.",
            panel=DATABASE, metavar="NAME", doors="query"),
    _option("seed", "whole", "Of all chance: same seed, same model.", default=0, least=0, reason="must not be negative", panel=LEARNING, metavar="N",
            doors=f"{_MODELS} explain demo groups-train groups-explain query-boosting query-torch"),

    _option("shuffle", "word", "corgipile, global, none, once, epoch, sliding-window, mrs or block-only.", default="corgipile", panel=MEMORY,
            metavar="NAME", doors="train estimator disk query query-torch", refused={"factor": "ratings are visited in an order of their own"}),
    _option("shuffles", "text", "The strategies to compare; also epoch and global.", default="none,sliding-window,mrs,block-only,once,corgipile",
            panel=MEMORY, metavar="A,B,C", doors="compare"),
    _option("memory", "memory", "What the rows may occupy: 512MB, or 10% of the data.", default="512MB", panel=MEMORY, metavar="SIZE",
            doors=f"{_MODELS} explain evaluate predict groups-train query-evaluate query-boosting query-torch", aliases="buffer_size", variants={
            "train explain": {"default_text": "512MB; 1GB with {model_dir}",
                              "help": "What the rows, and with {model_dir} the model's pages, may occupy: 512MB, or 10% of the data."},
            "disk factor": {"default": "1GB"},
            "predict": {"panel": ON_DISK, "default": None, "default_text": "512MB", "help": "Of a model's directory: what rows and pages may occupy."},
            "groups-train": {"help": "For sorting rows by group: 512MB, or 10% of the data."}}),
    _option("scratch", "text", "Where copies of the data are written; beside the data if not given.", panel=MEMORY, metavar="DIR", aliases="folder",
            doors=f"train compare {_FETCHED} query-evaluate", refused={"disk": "shuffled copies are written to {model_dir}"}),
    _option("block_size", "size", "Bytes of a block, such as 1MB, where the file leaves that open (text, Parquet, .npy).", panel=MEMORY, metavar="SIZE",
            doors=f"explain convert {_FETCHED} query-evaluate", variants={
            "convert": {"help": "Bytes of a block, such as 10MB; auto suits fast storage.", "default": "auto", "panel": OUTPUT}}),
    _option("storage", "flag", "Time reads of this storage, which takes two or three seconds.", default=True, panel=MEMORY, doors="explain",
            refused={"disk": "its storage is not timed"}),
    _option("nulls", "choice", "What becomes of rows with a null: fill (as the recipe fills it), error or skip.", default="fill", words="fill error skip",
            doors=f"{_FETCHED} query-evaluate"),
    _option("cache", "cache", "Whether rows that take long to decode are kept on disk after the first epoch, as they are learned from: on, off, at most"
            " a size, or the folder where later runs find them.", default="on", panel=MEMORY, metavar="SIZE", doors=f"train compare {_FETCHED}", refused={
            "disk": "its rows are read as they are stored"}, variants={
            "compare": {"default": "off"}, "query": {"default": None,
            "help": "Whether blocks that came from a server are kept on disk, or how many bytes of them."}}),
    _option("connections", "whole", "Connections to a server that read at once.", least=1, reason="is not a number of connections",
            fix="choose 1 or more", doors=f"{_FETCHED} query-evaluate"),
    _option("extension", "flag", "Whether a server that has the extension may do the training itself.", default=True, doors="query"),
    _option("replace", "flag", "Whether a model, or a table, of the same name may be replaced.", default=False, doors=f"{_FETCHED} query-pack"),
    _option("threshold", "number", "The probability above which a row is of the second of two classes.", least=0, below=1, default_text="0.5",
            reason="is not a probability to compare with", fix="choose one from 0 to below 1", doors="query-evaluate query-function"),
    _option("top_k_features", "whole", "How many columns an explanation of a prediction lists.", default=5, least=1,
            reason="is not a number of features", fix="choose 1 or more", doors="query-function"),
    _option("to", "choice", "What the packed column is to be: bytea or vector.", words="bytea vector", doors="query-pack"),

    _option("test", "text", "Rows to measure the model on after every epoch.", panel=STOPPING, metavar="DATA", doors="train compare"),
    _option("test_share", "number", "Or the share of DATA, drawn by chance, that is not learned from but measured so.", default=0.0, default_text="none",
            panel=STOPPING, metavar="SHARE", doors="train", refused={"factor": "a share of its ratings is held out by {validation}"}),
    _option("validation", "number", "The share of rows held out to measure the model on; 0 for none.", **_SHARE, panel=STOPPING, metavar="SHARE",
            default_text="10 %, about 10,000 rows at most, none of fewer than 500 or with {test}", aliases="test_fraction",
            warehouse="data_split_eval_fraction", doors=f"{_MODELS} groups-train groups-explain query-boosting query-torch", variants={
            "compare": {"default": 0.05, "default_text": ""},
            "groups-train groups-explain": {"panel": GROUPS, "default_text": "0.1", "help": _GROUP_SHARE}}),
    _option("patience", "whole", "Stop after so many epochs without improvement, 0 for never.", **_EPOCHS, fix="choose 1 or more, or 0 for never",
            panel=STOPPING, metavar="N", doors=f"{_MODELS} groups-train groups-explain boosting query-torch", variants={"boosting": {"least": 1,
            "help": "Stop after so many trees without a lower loss on the rows to choose by."}, "groups-train groups-explain": {
            "panel": LEARNING, "help": "Of sgd and lightgbm: stop a config when its loss on the rows to choose by has not fallen for so many epochs."}}),
    _option("tolerance", "number", "What counts as improvement of the loss; the slope at which lbfgs and gd are done.", default=1e-4, **_PENALTY,
            panel=STOPPING, metavar="X", doors=f"{_MODELS} search query-torch", warehouse="min_rel_progress"),

    _option("halving", "whole", "Of sgd: train in rounds, and let one config in ETA of each group go on after each.", panel=GROUPS, metavar="ETA",
            doors="groups-train"),
    _option("budget", "number", "Of {halving}: what all may take, in passes of one config over all rows.", panel=GROUPS, metavar="PASSES",
            doors="groups-train", needs="halving"),
    _option("pooled", "flag", "Train one model on the rows of all groups too, to compare with; it has the group columns where they are named as category, and takes about as long again.", default=True,
            panel=GROUPS, doors="groups-train"),
    _option("search", "choice", "How lists of values are tried: grid (every combination) or, of sgd, halving (in rounds, the best third goes on).", default="grid",
            words="grid halving", panel=GROUPS, doors=_GROUPED),
    _option("workers", "whole", "Processes that train; as many as cores if not given.", panel=GROUPS, metavar="N", least=1,
            reason="is not a number of workers", fix="choose 1 or more", doors=f"groups-train groups-explain {_GROUPED}",
            variants={"groups-explain": {"kind": "columns", "metavar": "A,B,C",
                      "help": "Numbers of workers to predict for; this machine's cores, 4 and 16 if not given."}}),
    _option("executor", "word", "local (processes of this machine) or ray.", default="local", panel=GROUPS, metavar="NAME", doors="groups-train"),
    _option("address", "text", "Of ray: the cluster; one is started here if not given.", panel=GROUPS, metavar="HOST:PORT", doors="groups-train"),
    _option("placement", "word", "How rows are dealt to workers: spread, sequential, wrap-around or constrained; what suits the model if not given.",
            panel=GROUPS, metavar="NAME", doors="groups-train"),
    _option("rows", "text", "Where rows by group are kept, to be used again; a temporary folder if not given.", panel=GROUPS, metavar="DIR",
            doors="groups-train sql", variants={"sql": {"kind": "whole", "least": 0, "default": 40, "panel": OUTPUT, "metavar": "N",
                                                         "help": "Print at most so many rows of a result; 0 for all."}}),
    _option("unseen", "word", "Of groups: what rows get whose group has no model: null, error, largest (the largest group's model), or pooled (the one model of all).",
            default_text="null", panel=GROUPS, metavar="NAME", doors=f"predict {_GROUPED}", variants={_GROUPED: {"kind": "choice", "words": ("pooled", "null"), "default": "pooled",
            "default_text": "", "help": "Of a model per group: what rows of other groups get: pooled (the one model of all groups) or null."}}),
    _option("group", "text", "Of groups: all configs of one group, such as FR/ios.", panel=GROUPS, metavar="KEY", doors="show"),

    _option("objective", "choice", "What trees minimize: binary, multiclass or regression. If not given, regression where the label is of a"
            " floating-point type, else classes.", words="binary multiclass regression", panel=TREES, doors="query-boosting"),
    _option("rounds", "whole", "Trees of a model, or of each class of it.", default=100, least=1, **_COUNT, doors="boosting", aliases="epochs max_epoch_num"
            " n_estimators num_iterations", warehouse="max_iterations"),
    _option("num_leaves", "whole", "Leaves of a tree, at most.", default=31, least=2, most=131_072, **_COUNT, doors="boosting"),
    _option("max_depth", "whole", "Splits above a leaf, at most; -1 for any number.", default=-1, least=-1, **_COUNT, doors="boosting", warehouse="max_tree_depth"),
    _option("min_data_in_leaf", "whole", "Rows of a leaf, at least.", default=20, least=0, **_COUNT, doors="boosting", aliases="min_child_samples"),
    _option("min_sum_hessian_in_leaf", "number", "Curvature of the rows of a leaf, at least.", default=1e-3, **_WEIGHT, doors="boosting", aliases="min_child_weight",
            warehouse="min_tree_child_weight"),
    _option("min_gain_to_split", "number", "What a split gains, at least.", default=0.0, **_WEIGHT, doors="boosting", aliases="min_split_gain", warehouse="min_split_loss"),
    _option("lambda_l1", "number", "Penalty on the sizes of leaves.", default=0.0, **_WEIGHT, doors="boosting", aliases="reg_alpha", warehouse="l1_reg"),
    _option("lambda_l2", "number", "Penalty on the squares of leaves.", default=0.0, **_WEIGHT, doors="boosting", aliases="reg_lambda", warehouse="l2_reg"),
    _option("feature_fraction", "number", "The share of features that a tree may use.", default=1.0, **_FRACTION, panel=TREES, doors="boosting",
            aliases="colsample_bytree", warehouse="colsample_bytree"),
    _option("feature_fraction_bynode", "number", "The share of features that a split may use.", default=1.0, **_FRACTION, panel=TREES, doors="boosting",
            warehouse="colsample_bynode"),
    _option("bagging_fraction", "number", "The share of rows that a tree learns from.", default=1.0, **_FRACTION, panel=TREES, doors="boosting",
            aliases="subsample", warehouse="subsample"),
    _option("bagging_freq", "whole", "Trees after which rows are drawn anew.", default_text="1 with {bagging_fraction}, else 0", least=0, **_COUNT,
            doors="boosting", aliases="subsample_freq"),
    _option("extra_trees", "flag", "Draw the thresholds of splits by chance.", default=False, panel=TREES, doors="boosting"),
    _option("path_smooth", "number", "How strongly leaves of few rows are drawn to the leaf above.", default=0.0, **_WEIGHT, doors="boosting"),
    _option("max_delta_step", "number", "What a leaf counts, at most; 0 for any value.", default=0.0, **_WEIGHT, doors="boosting"),
    _option("scale_pos_weight", "number", "How much rows of the second of two classes count.", default=1.0, least=0, above=True,
            reason="must be a positive number", panel=TREES, doors="boosting"),
    _option("is_unbalance", "flag", "Let both of two classes count the same in all.", default=False, panel=TREES, doors="boosting"),
    _option("max_bin", "whole", "Bins of a feature, at most.", default=255, least=2, most=65_535, **_COUNT, doors="boosting"),
    _option("min_data_in_bin", "whole", "Rows of a bin, at least.", default=3, least=1, **_COUNT, doors="boosting"),
    _option("min_data_per_group", "whole", "Rows of a level of a category that has a split, at least.", default=100, least=1, **_COUNT, doors="boosting"),
    _option("max_cat_to_onehot", "whole", "Levels up to which a category is split one against the others.", default=4, least=1, **_COUNT, doors="boosting"),
    _option("max_cat_threshold", "whole", "Levels on one side of a split, at most.", default=32, least=1, **_COUNT, doors="boosting"),
    _option("cat_smooth", "number", "How strongly rare levels are smoothed.", default=10.0, **_WEIGHT, doors="boosting"),
    _option("cat_l2", "number", "Penalty on the squares of leaves below a split by levels.", default=10.0, **_WEIGHT, doors="boosting"),

    _option("model_dir", "text", "Keep the model there, in pages of which memory holds some: it may be larger than memory.", panel=ON_DISK,
            metavar="DIR", doors=f"{_DISK} disk factor", variants={"disk factor": {"default": REQUIRED}}),
    _option("model_memory", "memory", "Of {memory}, what the model may occupy; {memory} is then for rows alone. 1GB, or 25% of the model's size.",
            panel=ON_DISK, metavar="SIZE", doors=f"{_DISK} query-disk", needs="model_dir"),
    _option("threads", "whole", "Threads that learn at once; with more than one, runs differ a little.", default=1, least=1,
            reason="is not a number of threads", fix="choose 1 or more", panel=ON_DISK, metavar="N", doors="train disk factor", needs="model_dir"),
    _option("dimension", "whole", "How many features there may be; an index at or beyond it is refused. Any 64-bit index is taken if not given.",
            panel=ON_DISK, metavar="N", doors=f"{_DISK} disk", needs="model_dir", refused=_OWN_COLUMNS),
    _option("user", "column", "Of factor: who rated.", panel=ON_DISK, metavar="COL", doors=f"{_DISK} query-factor", warehouse="user_col"),
    _option("item", "column", "Of factor: what was rated.", panel=ON_DISK, metavar="COL", doors=f"{_DISK} query-factor", warehouse="item_col"),
    _option("rating", "column", "Of factor: how it was rated.", panel=ON_DISK, metavar="COL", doors=f"{_DISK} query-factor", warehouse="rating_col"),
    _option("rank", "whole", "Of factor: numbers to a user and to an item.", default=100, least=1, reason="is not a number of factors",
            fix="choose 1 or more", panel=ON_DISK, metavar="N", doors=f"{_DISK} factor", warehouse="num_factors"),

    _option("module", "text", "The code of torch modules, as package:name: a penstock.torch.TorchModel, or a function that returns one.",
            metavar="PACKAGE:NAME", doors="query-torch sql", variants={"sql": {"kind": "columns", "panel": DATABASE,
            "help": "Code that models of the database may run: the TorchModel, or function, that they were trained by. May be repeated."}}),
    _option("db", "text", "Take MODEL by its name from this database: a DuckDB file, or postgresql://user@host/db.", panel=OUTPUT, metavar="DB",
            doors="evaluate predict show sql", variants={"sql": {"panel": DATABASE, "default": ":memory:",
            "help": "A DuckDB file (made if it is not there), or postgresql://user@host/db."}}),
    _option("file", "text", "Run the statements in a file.", panel=DATABASE, metavar="FILE", short="f", doors="sql"),
    _option("read_only", "flag", "Open a DuckDB file for reading alone.", default=False, panel=DATABASE, doors="sql"),
    _option("size", "size", "How much data to make.", default="1GB", panel="Data", metavar="SIZE", doors="demo"),
    _option("dir", "text", "Where to make it, and leave it; else in a temporary folder that is removed.", panel="Data", metavar="DIR", doors="demo"),
    _option("lines", "whole", "How many coefficients or groups to list, the largest first; 20 if not given, with {json} all. Of groups 20 on a"
            " terminal, else all.", metavar="N", doors="show"),
    _option("csv", "flag", "Print rows as CSV, all of them.", default=False, doors="sql show", variants={"show": {"kind": "text", "default": None,
            "panel": GROUPS, "metavar": "FILE", "help": "Of groups: write a row for each group and config instead."}}),
    _option("out", "text", "Where the model goes.", default="model.penstock", metavar="FILE", doors="train predict groups-train groups-report",
            refused={"disk": "the model is kept in {model_dir}"}, variants={
            "predict": {"help": "The Parquet file to write.", "default": "predictions.parquet"},
            "groups-train": {"help": "The folder for the models.", "default": "models", "metavar": "DIR"},
            "groups-report": {"help": "The page to write.", "default": "penstock-groups.html"}}),
    _option("report", "text", "The page to write.", metavar="FILE", doors="compare demo evaluate groups-train", variants={
            "compare": {"default": "penstock-compare.html"}, "demo": {"default": "penstock-demo.html"},
            "evaluate": {"help": "Write a page with the ROC curve, calibration and the largest coefficients."},
            "groups-train": {"help": "Write a page about the models, as groups report does."}}),
    _option("keep_anyway", "flag", "Save a model that is no better than a constant prediction; without, it is refused, or with {model_dir} told by the"
            " exit status.", default=False, doors="train groups-train", variants={"groups-train": {
            "help": "Do not exit with 1 where the models of all groups together are no better than a constant prediction."}}),
    _option("resume", "flag", "Go on from the last checkpoint of the same command.", default=False, doors="train groups-train", variants={
            "groups-train": {"help": "Train the groups that {out} lacks, by the same command."}}),
    _option("json", "flag", "Print one JSON object on stdout, and nothing else there.", default=False,
            doors="explain train evaluate show predict convert compare sql demo groups-train groups-explain groups-report"),
)
# fmt: on

TABLE: Mapping[str, Option] = MappingProxyType({option.name: option for option in _OPTIONS})
"""The options by name, in the order of help pages."""


@cache
def options_of(door: str) -> Mapping[str, Option]:
    """Return the options of a door by name.

    Examples
    --------
    >>> list(options_of("search"))
    ['epochs', 'learning_rate', 'l1', 'l2', 'tolerance']
    """
    found = {name: option.at(door) for name, option in TABLE.items() if door in option.doors}
    if not found:
        raise KeyError(door)
    return MappingProxyType(found)


def check_fields(config: Any, door: str) -> None:
    """Replace the fields of a frozen dataclass, which are options of a door, by their checked values."""
    for name in (name for name in options_of(door) if name in config.__dataclass_fields__):
        object.__setattr__(config, name, options_of(door)[name].check(getattr(config, name)))


def require_same_options(mine: Mapping[str, Any], saved: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise `UsageError` for the first of these options whose value differs from that in a checkpoint."""
    for name in names:
        if mine[name] != saved.get(name):
            raise made_with(name, saved.get(name), mine[name])


def made_with(option: str, saved: Any, value: Any) -> UsageError:
    """Return the error of a run that differs from its checkpoint in an option."""
    return UsageError(
        "the checkpoint was made with ",
        Given(option, saved),
        f", this run has {value!r}",
        option=option,
        value=value,
        fixes=["resume with the same value", START_ANEW],
    )


def default(name: str, door: str = "") -> Any:
    """Return the value that an option has where it is not given.

    Examples
    --------
    >>> default("memory"), default("memory", "disk")
    ('512MB', '1GB')
    """
    return TABLE[name].at(door).default
