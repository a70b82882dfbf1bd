"""A function from a notebook as a job, and a handle on it.

    <folder>/call           what to run: packed by packing.py, identified by its SHA-256
    <folder>/call.py        its source, for reading
    <folder>/outputs/       files that rank 0 left in $DDPIPE_OUTPUTS
    <folder>/value          what rank 0 returned
    <folder>/result.json    the seal of a finished call, written last

`python -m ddpipe.notebook.call FOLDER SHA256` runs each rank. A call is pickled code: the user's own, through
the user's own store, checked against its hash.
"""
