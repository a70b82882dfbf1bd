"""A function of a notebook, or a script, on its way to the ranks; what rank 0 returns on its way back.

    <folder>/call           what is to be run: packed by packing.py, named by its SHA-256
    <folder>/call.py        its source, for people
    <folder>/outputs/       files that rank 0 left in $DDPIPE_OUTPUTS
    <folder>/value          what rank 0 returned
    <folder>/result.json    the seal of a finished call, written last

`python -m ddpipe.calls FOLDER SHA256` is each rank. A call is pickled code: the user's own, through the
user's own store, and proven by its hash to be what was packed.
"""
