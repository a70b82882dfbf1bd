"""What runs a training job: one file per kind of job."""
