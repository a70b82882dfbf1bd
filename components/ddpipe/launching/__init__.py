"""The launch protocol, a file per step: a training job and a cluster in, its outcome out.

launcher      runs the steps below in their order, and cleans up
choosing      picks a backend that the cluster and the account can run the job with
preflight     finds all problems before anything is created
nodes         judges whether the cluster's nodes can take the job
attempt       holds what the steps below share
adoption      creates the job, or adopts the one that an earlier attempt created
removal       removes a job so that another one can take its name
ownership     finds the workflow or pod that owns the job, so that it cannot outlive its run
companions    creates further objects that the job needs
stopping      deletes the job on a request to stop
following     turns what the watches report into the job's end
observer      watches the job, its pods and its events as they are now
record        remembers the pods that are gone, until the job has recovered from their loss
stalls        gives up on a job that cannot start
progress      prints how the job is doing
deadlines     measures how long each stage lasts
diagnosis     finds the root cause of a failure
logs          streams the logs of the chosen ranks, and of those that fail
loglines      splits a log into bounded lines, each once
output        writes lines without blocking the protocol
elastic       changes the number of pods of a running job
scaling       records a request for another number of pods on a job
orphans       lists and removes jobs whose run is over
"""
