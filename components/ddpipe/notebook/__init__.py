"""A function from a notebook as a job, and a handle on it.

    <folder>/launch.json    what was launched, without any secret
    <folder>/call           what to run: packed by packing.py, identified by its SHA-256
    <folder>/call.py        its source, for reading
    <folder>/outputs/       files that rank 0 left in $DDPIPE_OUTPUTS
    <folder>/value          rank 0's return value
    <folder>/ranks/N        empty; rank N returned
    <folder>/result.json    the seal of a finished call
    <folder>/outcome.json   how the launch ended, written by its launcher

What is trusted: the notebook, the account that creates the job, and the pods. The store is not, because a
bucket is often shared. A call is pickled code, so a pod runs it only if it has the SHA-256 in the pod's
command. A value is pickled, too, so a notebook opens it only if result.json has a valid HMAC over the call,
the value and the outputs. The key of the HMAC is drawn for each launch. It is kept in the cache folder of the
launching user (mode 0600) and reaches the pods through a Secret that the job owns. Who may create pods in the
namespace can mount that Secret, as any other.
"""
