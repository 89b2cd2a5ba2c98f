"""A worker process: it leases data, takes local steps, exchanges, until the end."""

from __future__ import annotations

import contextlib
import sys
import traceback

from shoal.engine.environment import SYSTEM, Environment
from shoal.engine.transport.client_connection import Fenced
from shoal.engine.transport.messages.worker_reports import Failed
from shoal.engine.transport.segments import LONG, InPairs, in_turn
from shoal.engine.worker.client import ServerClient
from shoal.engine.worker.gradient_loop import GradientLoop
from shoal.engine.worker.spec import WorkerSpec
from shoal.engine.worker.weight_loop import WeightLoop
from shoal.errors import DataError, ShoalError
from shoal.launchers.titles import title
from shoal.terminal import without_colours

# Characters of an error that are sent: JSON may take 12 bytes for each.
MOST_TEXT = 1 << 15


def work(spec: WorkerSpec, environment: Environment = SYSTEM) -> None:
    """Runs one worker to the end of the run.

    A failure of user code is reported to the controller with its traceback. A lost
    server ends the worker without a report: the controller knows the reason.

    Args:
        spec: Spec of the worker.
        environment: Clock, connections and threads.
    """
    title(f"worker-{spec.server_address.hint}", spec.run)
    pairs = InPairs(LONG)
    try:
        client = ServerClient(
            spec.server_address,
            spec.strategy,
            environment,
            is_early=spec.has_overlap,
            spread=pairs
            if len(spec.cores) > 1
            else in_turn,  # not shared with other workers
        )
    except (OSError, ShoalError) as error:
        # The controller does not know it yet: it only learns of the end of the process.
        sys.exit(f"this worker could not join the run: {error}")
    title(f"worker-{client.rank}", spec.run)
    worker = None
    try:
        worker = (GradientLoop if spec.exchanges_gradients else WeightLoop)(
            spec, client
        )
        worker.run()
    except (ConnectionError, Fenced):
        return
    except Exception as error:
        text = without_colours(traceback.format_exc())
        print(text, flush=True)  # noqa: T201 - this is the worker's log
        with contextlib.suppress(OSError, ShoalError):
            client.tell(
                Failed(
                    traceback=text[-MOST_TEXT:],
                    error=without_colours(f"{type(error).__name__}: {error}")[
                        :MOST_TEXT
                    ],
                    step=0 if worker is None else worker.steps,
                    is_data=isinstance(error, DataError),
                )
            )
    finally:
        client.leave()
        pairs.close()
        if worker is not None:
            worker.close()
        if spec.clean_up is not None:
            worker = None
            spec.clean_up()
