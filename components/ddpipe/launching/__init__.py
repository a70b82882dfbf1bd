"""The launch protocol: a training job and a cluster in, its outcome out.

launcher      runs the steps below in their order, and cleans up
preflight     picks the kind of job, and finds all problems before anything is created
nodes         judges whether the cluster's nodes can take the job
adoption      adopts the job, or removes what is left of an earlier one and creates it with what it needs
ownership     finds what a job belongs to; lists and removes jobs whose run is over
stopping      deletes the job on a request to stop
following     turns what the watches report into the job's end
observer      watches the job, its pods and its events as they are now
pod_history   remembers the pods that are gone, until the job has recovered from their loss
stalls        gives up on a job that cannot start
progress      prints how the job is doing, without blocking the protocol
deadlines     measures how long each stage lasts
diagnosis     finds the root cause of a failure
logs          streams the logs of the ranks, and of those that fail
loglines      splits a log into bounded lines, each once
elastic       changes the number of pods of a running job, on request or when some are lost
"""
