"""What Penstock is measured against, on its own kernels and rows: the rivals that the papers name.

`arrays`, `chunked`, `keys`, `engine` and `key_value` hold a large model in memory, in a mapped file or in a key-value
store; `group_tasks` trains groups as others deal them to workers; `exact_placement` finds the best placement of few groups.
"""
