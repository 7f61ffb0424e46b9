"""Attempts as trial directories of Harbor, below a job directory for each run.

    <jobs>/<run id>/config.json, result.json           the job
    <jobs>/<run id>/<task>__<seven characters>/        a trial: config.json, result.json, agent/, ...

``harbor view <jobs>`` opens them. A trial is written by whoever settles its attempt, the job's own files
once, from the trials that are there.
"""

from pytest_ageval.export.harbor.job import write_job, write_jobs
from pytest_ageval.export.harbor.names import DIRECTORY, job_name, jobs_directory, trial_name
from pytest_ageval.export.harbor.trial import write_trial

__all__ = ["DIRECTORY", "job_name", "jobs_directory", "trial_name", "write_job", "write_jobs", "write_trial"]
