"""What the shortest line that a person can type reaches, against scikit-learn's scaled models; nothing is tuned.

``python -m benchmarks.defaults --door file`` puts every table through one door, its training rows once as published and
once sorted by label, and prints accuracy (R²) and log loss on test rows beside scikit-learn's. Scores are computed here,
from predictions. `--solver sgd` forces SGD with memory for all, 10 % and 2 % of the data; ``--seeds 10`` shows the spread
over seeds. Tables are in `tables`, bars in `scores`, and the doors in `doors`. ``--suite whole`` takes tables with all their
columns (`whole_tables`), and scikit-learn with the ColumnTransformer that a careful user writes (`column_transformer`).
"""

from __future__ import annotations

from benchmarks.harness import Claim


def run(quick: bool) -> list[Claim]:
    """Put every table through the file door, and through SGD with all its memory shares."""
    from benchmarks.defaults.scores import text_table
    from benchmarks.defaults.suite import SHARES, named_door, run_door, run_sgd
    from benchmarks.defaults.tables import FOLDER, LARGEST, READERS
    from benchmarks.defaults.whole_tables import WHOLE_READERS

    name = "defaults: tables behind scikit-learn"
    if not FOLDER.is_dir():
        return [Claim.not_measured(name, "≤ 0", f"{FOLDER} is not there; set PENSTOCK_DATA")]
    names, most = list(READERS), 2_000 if quick else LARGEST
    claims = []
    runs = {"file": run_door(named_door("file"), names, most=most)}
    runs["file, whole tables"] = run_door(named_door("file"), list(WHOLE_READERS), suite="whole", most=most)
    for share in SHARES:
        runs[f"file, sgd, memory {share}"] = run_sgd(names, share, most=most)
    for title, found in runs.items():
        print(text_table(found, title))
        missed = [one.table for one in found if one.verdict == "MISSED"]
        claims.append(Claim.at_most(f"{name}, {title}", len(missed), 0, unit="", note=", ".join(missed)))
    return claims
