"""`Job` of dist-keras: a trainer that runs on the head of a cluster, over SSH."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from shoal.clusters.cluster_state import ClusterStore
from shoal.clusters.jobs import Jobs
from shoal.clusters.refreshing import refreshed
from shoal.clusters.remote_jobs import DONE, RUNNING
from shoal.errors import ClusterError, ConfigError
from shoal.host.temporary import keras_saving, temporary_folder
from shoal.paths import one_inside, unpack
from shoal.plan import environment
from shoal.plan.request import require_whole
from shoal.runs.claim import slug
from shoal.spark.deserialization import trainer_class
from shoal.spark.job_script import HISTORY, MODEL, RESULT, SECRET, SPEC, TEXT
from shoal.spark.trainer import Trainer
from shoal.spark.trainers import EnsembleTrainer
from shoal.terminal import Lines, say_output
from shoal.training.remote_fit import Sent

GRACE_S = 10.0


@final
class Job:
    """Trains with a trainer on the head of a cluster; it continues when you log out.

    The trainer travels as its name and arguments, and its model as a Keras archive, so
    nothing that is sent is code. The head compares the secret before it reads the
    rest, and runs one job of a secret at a time.

    Args:
        secret: Secret of the head: `shoal spark secret --identity NAME` there.
        job_name: Name of the Spark application.
        data_path: Parquet files, or others by their suffix, as the head reads them.
        num_executors: Executors of the session, at least 1.
        num_processes: Workers on each of them, at least 1.
        trainer: A trainer of `shoal.spark`, with its model.
        conf: Settings of the session, such as spark.master.

    Raises:
        ConfigError: A number is too small, or the trainer cannot be sent.
    """

    def __init__(
        self,
        secret: str,
        job_name: str,
        data_path: str,
        num_executors: int,
        num_processes: int,
        trainer: Trainer,
        *,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._secret, self._model = secret, trainer.keras_model
        self._spec: dict[str, Any] = {
            "trainer": _text_of(trainer), "job_name": job_name, "data_path": data_path,
            "num_executors": require_whole("num_executors", num_executors, 1),
            "num_processes": require_whole("num_processes", num_processes, 1),
            "conf": dict(conf or {}),
        }  # fmt: skip
        self._sent: tuple[Jobs, str] | None = None

    def send(self, cluster: str | Jobs) -> str:
        """Sends the job; returns its id, for `shoal jobs`.

        Args:
            cluster: Name of a cluster that `shoal cluster up` has made.

        Raises:
            ConfigError: There is no such cluster, or the job was sent already.
            ClusterError: The head refuses.
        """
        if self._sent is not None:
            raise ConfigError(
                f"the job was sent already, as {self._sent[1]}. Expected one call of "
                "send. Make another Job for another training."
            )
        jobs = cluster
        if isinstance(jobs, str):
            jobs = Jobs(refreshed(ClusterStore(environment().clusters), jobs))
        with tempfile.TemporaryDirectory(dir=temporary_folder()) as name:
            folder = Path(name)
            script = one_inside(folder, f"{slug(self._spec['job_name'])}.py")
            script.write_text(TEXT)
            (folder / SECRET).write_text(self._secret)
            (folder / SPEC).write_text(json.dumps(self._spec))
            with keras_saving():
                self._model.save(folder / MODEL)
            beside = [folder / one for one in (SECRET, SPEC, MODEL)]
            self._sent = jobs, jobs.submit(script, [], beside)
        return self._sent[1]

    def wait_completion(self) -> None:
        """Prints the output of the job until it has ended.

        Raises:
            ClusterError: It failed, or the head cannot be reached.
        """
        jobs, job = self._there()
        lines = Lines()

        def show(data: bytes) -> None:
            for piece in lines.feed(data):
                say_output(piece.text, end="\n" if piece.is_end else "")

        ended = Sent(jobs=jobs, id=job).follow(show)
        for piece in lines.end():
            say_output(piece.text)
        if ended.state != DONE:
            raise ClusterError(
                f"job {job}: {ended.state}. Expected it to end well. See its output: "
                f"shoal jobs logs {job} --cluster {jobs.name}"
            )

    def is_finished(self) -> bool:
        """Whether the job has ended, in whatever way."""
        jobs, job = self._there()
        return jobs.find(job).state != RUNNING

    def get_trained_model(self) -> Any:
        """Returns the trained model.

        Raises:
            ClusterError: There is none, or it cannot be fetched.
        """
        import keras

        with self._fetched() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an optimizer that was not used
            return keras.saving.load_model(Path(folder) / RESULT / MODEL)

    def get_history(self) -> dict[str, list[float]]:
        """Returns metric -> value of each epoch.

        Raises:
            ClusterError: There is none, or it cannot be fetched.
        """
        with self._fetched() as folder:
            return json.loads((Path(folder) / RESULT / HISTORY).read_text())

    def cancel(self) -> None:
        """Ends all processes of the job; may be repeated."""
        jobs, job = self._there()
        jobs.stop(jobs.find(job), grace_s=GRACE_S)

    def destroy_remote_job(self) -> None:
        """Ends the job, and removes its files and its result from the head."""
        jobs, job = self._there()
        self.cancel()
        jobs.remove(jobs.find(job))
        self._sent = None

    def _there(self) -> tuple[Jobs, str]:
        if self._sent is None:
            raise ConfigError(
                "the job was not sent yet. Expected a job that was sent. Call "
                "send(cluster) first."
            )
        return self._sent

    def _fetched(self) -> tempfile.TemporaryDirectory[str]:
        jobs, job = self._there()
        made = tempfile.TemporaryDirectory(dir=temporary_folder())
        try:
            packed = Path(made.name, "result.tar.gz")
            jobs.fetch(jobs.find(job), RESULT, packed)
            unpack(packed, Path(made.name))
        except BaseException:
            made.cleanup()
            raise
        return made


def _text_of(trainer: Trainer) -> str:
    """Returns a trainer as JSON, of which the head makes the same one.

    Raises:
        ConfigError: The head could not make it, or it trains several models.
    """
    kind, text = type(trainer), trainer.serialize()
    if trainer_class(kind.__name__) is not kind:
        raise ConfigError(
            f"trainer is a {kind.__name__}. Expected a class of shoal.spark: the head "
            "of the cluster has no other. Write a script, and send it with "
            "`shoal submit`."
        )
    if kind is EnsembleTrainer:
        raise ConfigError(
            "EnsembleTrainer trains several models. Expected a trainer of one model. "
            "Write a script, and send it with `shoal submit`."
        )
    return text
